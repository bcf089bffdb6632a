/* The table of commands and the way to them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/commands.h"
#include "base/environment.h"
#include "base/interrupt.h"
#include "base/json_file.h"
#include "options/figure_lines.h"
#include "run/launcher.h"

static const cli_command command_table[] = {
    {"run", CLI_RUN, "one problem: verify, time, print",
     "Runs the operation on W ranks with inputs whose result is known exactly,\n"
     "checks every value and prints the time.\n",
     "  entwine run\n"
     "  entwine run -W 4 -m 2K -N 2K -k 512 -d bf16\n"
     "  entwine run --link 0.3 --config order=contiguous\n"
     "  entwine run --backend cuda -W 8 -m 8K -N 8K -k 2K --link 46\n",
     NULL, cli_run_main},
    {"bench", CLI_BENCH, "lists of problems, several methods side by side",
     "Measures every problem with every method, interleaved sample by sample in one\n"
     "run, and checks every value.  Methods: entwine,sequential,blas unless given.\n"
     "Figures of the paper's evaluation:\n"
     "  speedup       every method over the baseline, and overlap efficiency\n"
     "  layer         the same with the residual addition and RMSNorm of a layer\n"
     "  order         interleaved, default and contiguous order of computation\n"
     "  release       from one tile to the whole output released together\n"
     "  pool          reducers that share the GEMM's workers or SMs, or not\n"
     "  budget        time, GEMM window and tail against the budget x, at eight K\n"
     "  bandwidth     of the ReduceScatter alone, against the budget x\n"
     "  required      bandwidth of Eq. 4 against the measured one, for a suite\n"
     "  waves         speedup over each method against the GEMM's number of waves\n"
     "  scaling       speedup over each method at W = 2, 4 and 8\n"
     "  link          every method, and the exchange alone, over one emulated link\n",
     "  entwine bench -m 1024-8192*2 -k 512,2048\n"
     "  entwine bench --suite smoke -o csv > smoke.csv\n"
     "  entwine bench --link 0.3 --variant release=partition\n"
     "  entwine bench --figure speedup -J speedup.json\n"
     "  mpirun -np 2 entwine bench --method entwine,blas,blas+mpi\n",
     NULL, cli_bench_main},
    {"plan", CLI_PLAN, "dry run: grid, memory, bytes, what was chosen and why",
     "Shows what a plan would do and need, without running it.  With --profile: what\n"
     "every method would take on that hardware, the best schedule, and what matters.\n",
     "  entwine plan -m 8K -N 8K -k 1K -W 8 -d bf16\n"
     "  entwine plan -m 2K -N 2K --gflops 75 -o json\n"
     "  entwine plan --profile h200-8 -m 8K -N 8K -k 2K -W 8\n",
     NULL, cli_plan_main},
    {"sim", CLI_SIM, "profiles of hardware to simulate",
     "Lists the built-in profiles.  docs/SIMULATOR.md says how far to trust them.\n",
     "  entwine sim\n"
     "  entwine bench --profile h200-8 -W 8 -m 8K -N 8K -k 1K,2K,4K\n",
     NULL, cli_sim_main},
    {"doctor", CLI_DOCTOR, "checks this machine and tests the installation",
     "Prints OK, WARN or FAIL with a remedy for everything Entwine relies on, then\n"
     "runs a self-test of about two seconds.  Exit status 5 when anything FAILs.\n",
     "  entwine doctor\n"
     "  entwine doctor --verbose\n"
     "  entwine doctor -W 8 -o json\n",
     NULL, cli_doctor_main},
    {"demo", CLI_DEMO, "the idea in one screen, measured here",
     "Measures the methods on this host, without and with an emulated link, and draws\n"
     "when tiles are reduced in contiguous and in interleaved order.\n",
     "  entwine demo\n"
     "  entwine demo --link 0.1 -d bf16\n",
     NULL, cli_demo_main},
    {"tune", CLI_TUNE, "finds the fastest schedule by measuring, and keeps it",
     "Measures candidates for each problem, interleaved with the built-in choice, and\n"
     "stores the best as an entry that plans use from then on.\n",
     "  entwine tune -m 8K -N 8K -k 1K -W 8 -d bf16 --budget 60s\n"
     "  entwine tune --suite smoke --resume\n",
     NULL, cli_tune_main},
    {"cache", CLI_CACHE, "lists tuning entries, and removes damaged or old ones",
     "ACTION is one of\n"
     "  list          one line for each entry\n"
     "  prune         removes damaged entries and leftovers of interrupted writes\n"
     "Entries are files: copy the folder to take them elsewhere.\n",
     "  entwine cache list\n"
     "  entwine cache prune --older 90\n",
     "ACTION", cli_cache_main},
    {"compare", CLI_COMPARE, "two results of bench: what became slower",
     "Pairs the results of two `bench -o json` files by problem and method.  A ratio\n"
     "is the second file's median time over the first one's, with a 95 % confidence\n"
     "interval; REGRESSION when all of it lies beyond the threshold (exit status 4).\n",
     "  entwine compare before.json after.json\n"
     "  entwine compare before.json after.json --threshold 2% -o json\n",
     "BEFORE.json AFTER.json", cli_compare_main},
    {"trace", CLI_TRACE, "one call as a timeline for Perfetto or Chrome",
     "Records the quickest of some calls on every rank, checks its values and writes\n"
     "it as trace events: slices for blocks and reductions, arrows for contributions.\n"
     "Sequential calls in the same run say how much of the communication was hidden.\n",
     "  entwine trace\n"
     "  entwine trace -W 4 --link 0.3 -o link.json\n"
     "  entwine trace --config order=contiguous -o - > contiguous.json\n"
     "  entwine trace --merge entwine-1700000000-4711.json\n",
     "[FILE.json...]", cli_trace_main},
    {"status", CLI_STATUS, "running jobs: ranks, progress, who holds up whom",
     "Shows the Entwine jobs of this user on this host, or only that of process PID,\n"
     "which is a rank or started one: every rank's operations, meetings, last step\n"
     "and what it waits for, and the rank that holds up the others.\n",
     "  entwine status\n"
     "  entwine status 4711\n"
     "  entwine status 4711 -o json > job.json\n",
     "[PID]", cli_status_main},
    {"report", CLI_REPORT, "results and timelines as one HTML page",
     "Makes one self-contained page from files of `bench -J` and `trace`, and of\n"
     "bench/results: charts that show their numbers, timelines, tables, the machine,\n"
     "and the commands that measured it.  Machines and commits are never mixed.\n",
     "  entwine bench --suite smoke -J smoke.json\n"
     "  entwine report smoke.json trace.json -o report.html\n",
     "FILE.json...", cli_report_main},
};

enum { NUM_COMMANDS = sizeof command_table / sizeof command_table[0] };

static void print_help(FILE *stream)
{
    fputs("usage: entwine COMMAND [options]\n\n"
          "GEMM with ReduceScatter, AllReduce or AllGather, whose communication hides\n"
          "behind the computation.\n\n",
          stream);
    for (int at = 0; at < NUM_COMMANDS; at++)
        fprintf(stream, "  %-9s %s\n", command_table[at].name, command_table[at].summary);
    fputs("  help      this text, or `entwine help COMMAND`\n\n"
          "  --version, --help\n\n"
          "exit status: 0 ok, 1 wrong values, 2 usage or shape, 3 a rank died or stalled,\n"
          "  4 regression, 5 environment, 77 skipped, 130 interrupted\n\n"
          "examples:\n"
          "  entwine demo\n"
          "  entwine bench -m 1024-4096*2 -W 2\n",
          stream);
}

static const cli_command *find_command(const char *name)
{
    for (int at = 0; at < NUM_COMMANDS; at++)
        if (strcmp(command_table[at].name, name) == 0)
            return &command_table[at];
    return NULL;
}

static cli_exit fail_command(const char *name)
{
    const char *names[NUM_COMMANDS + 2];
    char fix[96] = "entwine --help lists the commands";
    for (int at = 0; at < NUM_COMMANDS; at++)
        names[at] = command_table[at].name;
    names[NUM_COMMANDS] = "help";
    names[NUM_COMMANDS + 1] = NULL;
    const char *near = cli_closest(name, names);
    if (near)
        snprintf(fix, sizeof fix, "did you mean `entwine %s`?", near);
    return cli_fail_usage(fix, "no command '%.60s'", name);
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static cli_exit help_main(int argc, char **argv)
{
    if (argc < 2 || is_help(argv[1]) || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return CLI_EXIT_OK;
    }
    const cli_command *command = find_command(argv[1]);
    if (!command)
        return fail_command(argv[1]);
    if (argc > 2) {
        char fix[64];
        snprintf(fix, sizeof fix, "entwine help %s", command->name);
        return cli_fail_usage(fix, "entwine help takes one command, not '%.60s' as well",
                              argv[2]);
    }
    cli_options_help(command, stdout);
    return CLI_EXIT_OK;
}

static cli_exit dispatch(int argc, char **argv)
{
    cli_settings settings;
    if (argc < 2)
        return cli_fail_usage(
            "`entwine demo` shows what this is, `entwine --help` the rest",
            "no command given");
    if (is_help(argv[1]))
        return help_main(1, argv);
    if (strcmp(argv[1], "--version") == 0) {
        printf("entwine %s (commit %s)\n", ew_version(), cli_commit());
        return CLI_EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0)
        return help_main(argc - 1, argv + 1);
    const cli_command *command = find_command(argv[1]);
    if (!command)
        return fail_command(argv[1]);
    cli_exit failed = cli_options_parse(command, argc - 1, argv + 1, &settings);
    if (failed)
        return failed;
    if (settings.help) {
        cli_options_help(command, stdout);
        return CLI_EXIT_OK;
    }
    cli_figure_line line; /* the settings point into it */
    if (settings.figure)
        failed = cli_figure_apply(command, argc - 1, argv + 1, &line, &settings);
    return failed ? failed : command->main(&settings, argc, argv);
}

static void speak_for_host(const cli_launch *launch)
{
    char host[65] = "", who[96];
    gethostname(host, sizeof host - 1);
    snprintf(who, sizeof who, "rank %d (%s)", launch->launcher.rank, host);
    cli_say_unsaid(cli_launch_is_first_of_host(launch) ? who : NULL);
}

int main(int argc, char **argv)
{
    cli_interrupt_init();
    signal(SIGCHLD, SIG_DFL); /* a parent may have ignored it, and we wait for children */
    signal(SIGXFSZ, SIG_IGN); /* beyond ulimit -f writes fail, as on a full disk */
    cli_json_init();
    cli_launch launch;
    cli_launch_detect(&launch);
    /* Only rank 0 of a launcher prints, unless it is the one that is gone, or a host has an
     * error of its own, such as a file that it lacks. */
    if (launch.found && launch.launcher.rank != 0)
        cli_mute();
    cli_exit status = dispatch(argc, argv);
    if (cli_json_lacks() && status == CLI_EXIT_OK)
        status = cli_fail_memory("for all of the output");
    /* A full disk must not look like success. */
    if (fflush(stdout) || ferror(stdout)) {
        const cli_exit failed =
            cli_fail(EW_ERR_SYSTEM, "make room, or send the output elsewhere",
                     "cannot write to standard output");
        status = status ? status : failed;
    }
    speak_for_host(&launch);
    return status;
}

"""Every file that the tool reads or writes, under bad conditions: check_files.py ENTWINE [TEST...]

READERS and WRITERS list them all (a test compares the lists with the help), and each test goes
over one of the lists: files that block, never end or are too large; links, devices, full disks and
kills; calls that fail in turn.
"""
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENTWINE = str(Path(sys.argv[1]).resolve())
LIMIT_S = 120  # far beyond what any of them takes, also on a busy machine
MOST_KIB = 300 << 10  # of memory, for a file that is refused
SHAPE = "-m 512 -N 512 -k 512 -W 2"
SMALL = f"{SHAPE} -q --profile h200-8"
ENTRY = "0123456789abcdef.json"

# What reads a file: the command with FILE in it, and what the option is called in the help.
READERS = {
    "report": ("report FILE -o page.html", "report FILE.json..."),
    "compare before": ("compare FILE GOOD", "compare BEFORE.json AFTER.json"),
    "compare after": ("compare GOOD FILE", "compare BEFORE.json AFTER.json"),
    "trace --merge": ("trace --merge FILE", "trace [FILE.json...]"),
    "bench --suite": ("bench -q --suite FILE", "bench --suite"),
    "tune --suite": ("tune --dry-run -q --suite FILE", "tune --suite"),
    "run --profile": ("run -q --profile FILE", "run --profile"),
    "bench --profile": ("bench -q --profile FILE", "bench --profile"),
    "trace --profile": ("trace -q --profile FILE -o t.json", "trace --profile"),
    "plan --profile": ("plan --profile FILE", "plan --profile"),
    "ENTWINE_PROFILE": ("run -q --backend sim", None),
}
# What writes one; the last column is for commands that are as quick as a sweep needs them.
WRITERS = {
    "trace -o": (f"trace {SMALL} -n 1 -o FILE", "trace -o", "json"),
    "report -o": ("report GOOD -o FILE", "report -o", "html"),
    "bench -J": (f"bench {SMALL} --method entwine,sequential -n 2 -J FILE", "bench -J", "json"),
    "run -J": (f"run {SMALL} -n 2 -J FILE", "run -J", "json"),
}
SIGNALS = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)


class Skip(Exception):
    """Cannot be tried here."""


# ---- Running the tool ----------------------------------------------------------------------

class Outcome:
    def __init__(self, status, out, err, peak_kib):
        self.status, self.out, self.err, self.peak_kib = status, out, err, peak_kib


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENTWINE_")}
    return {**kept, "LC_ALL": "C", "ENTWINE_CACHE_DIR": os.path.abspath("cache"), **more}


def command(text, path=None):
    words = [ENTWINE, *text.split()]
    return [{"FILE": path, "GOOD": "good.json"}.get(word, word) for word in words]


def start(text, path=None, before=None, stdout=subprocess.PIPE, **variables):
    return subprocess.Popen(command(text, path), stdin=subprocess.DEVNULL, stdout=stdout,
                            stderr=subprocess.PIPE, env=environment(**variables),
                            preexec_fn=before)


def end(process):
    """What became of it; a process that does not end is a failure."""
    given_up = time.monotonic() + LIMIT_S
    streams = {}
    for name in ("stdout", "stderr"):
        stream = getattr(process, name)
        if stream:
            os.set_blocking(stream.fileno(), False)
            streams[name] = b""
    while True:
        for name in streams:
            while part := getattr(process, name).read():
                streams[name] += part
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > given_up:
            os.kill(process.pid, signal.SIGKILL)
            raise AssertionError(f"does not end: {' '.join(process.args)}")
        time.sleep(0.001)
    process.returncode = os.waitstatus_to_exitcode(status)
    for name in streams:
        streams[name] += getattr(process, name).read() or b""
        getattr(process, name).close()
    return Outcome(process.returncode, *(streams.get(name, b"").decode(errors="replace")
                                         for name in ("stdout", "stderr")), usage.ru_maxrss)


def run(text, path=None, before=None, **variables):
    return end(start(text, path, before, **variables))


def fail(what, outcome, why):
    raise AssertionError(f"{what}: {why}\n  exit {outcome.status}, {outcome.peak_kib} KiB\n"
                         f"  stdout: {outcome.out[:300]!r}\n  stderr: {outcome.err[:500]!r}")


# ---- The tables are complete ---------------------------------------------------------------

def options_of(name):
    """The help's options with their argument and text, and the words that the command takes."""
    text = run(f"help {name}").out
    words = re.match(rf"usage: entwine {name} (.*)\[options\]", text)[1].strip()
    options = re.findall(r"^  (?:-(\w), |    )--([\w-]+)(?: (\S+))?(.*(?:\n {20,}.*)*)", text, re.M)
    return words, options


def test_all_file_arguments_are_listed():
    known = {row[1] for row in (*READERS.values(), *WRITERS.values())}
    commands = re.findall(r"^  (\w+) +\S", run("help").out.split("exit status")[0], re.M)
    assert len(commands) > 10, commands
    for name in commands:
        if name == "help":
            continue
        words, options = options_of(name)
        if "json" in words:
            assert f"{name} {words}" in known, f"{name} {words} is in no table"
        for letter, option, argument, text in options:
            if argument == "FILE" or re.search(r"\bpath\b", text):
                assert {f"{name} --{option}", f"{name} -{letter}"} & known, \
                    f"{name} --{option} is in no table"


# ---- Readers -------------------------------------------------------------------------------

def make_fifo(path):
    os.mkfifo(path)


def make_fifo_held_open(path):
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)  # a writer that never writes


def make_socket(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    return listener


def make_device(path):
    os.symlink("/dev/zero", path)


def make_terminal(path):
    leader, follower = os.openpty()
    os.symlink(os.ttyname(follower), path)
    return leader, follower


def make_sparse(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def make_large(path):
    with open(path, "wb") as file:
        file.write(b'{"schema": [')
        for _ in range(40):
            file.write(b"1.5, " * (1 << 20))
        file.write(b"1]}")


def make_brackets(path):
    with open(path, "wb") as file:
        file.write(b"[")
        for _ in range(20):
            file.write(b"[]," * (1 << 20))
        file.write(b"[]]")


def make_deep(path):
    Path(path).write_text('{"a": ' + "[" * 100000 + "]" * 100000 + "}")


INPUTS = {"a pipe without a writer": make_fifo, "a pipe that is silent": make_fifo_held_open,
          "a socket": make_socket, "an endless device": make_device, "a terminal": make_terminal,
          "a folder": os.mkdir, "a terabyte of nothing": make_sparse, "198 MB of JSON": make_large,
          "brackets alone": make_brackets, "100000 levels": make_deep,
          "nothing": lambda path: Path(path).touch(), "zeroes": lambda path: Path(path).write_bytes(bytes(5000)),
          "no UTF-8": lambda path: Path(path).write_bytes(b'{"schema": "\xff\xfe\x9b"}'),
          "a loop": lambda path: os.symlink(path, path), "no file": lambda path: None}


def refused(what, outcome, path):
    if outcome.status != 2:
        fail(what, outcome, "is not refused")
    if path not in outcome.err or "fix:" not in outcome.err or outcome.err.count("\n") > 6:
        fail(what, outcome, "gives no clear error")
    most = MOST_KIB if "brackets" not in what else 4 * MOST_KIB
    if outcome.peak_kib > most:
        fail(what, outcome, f"takes more than {most} KiB")


def test_readers_refuse_what_is_no_file_of_theirs():
    for kind, make in INPUTS.items():
        os.mkdir("in")
        path = "in/x.suite"
        held = make(path)
        for name, (text, _) in READERS.items():
            variables = {"ENTWINE_PROFILE": "./" + path} if name.startswith("ENTWINE") else {}
            refused(f"{name} of {kind}", run(text, "./" + path, **variables), path)
        del held
        shutil.rmtree("in")


def test_tuning_entries_that_are_no_files_are_misses():
    for kind, make in INPUTS.items():
        shutil.rmtree("cache", ignore_errors=True)
        # The entry that a plan of this problem would use.
        assert run("plan -m 64 -N 64 -k 64").status == 0
        os.mkdir("cache")
        held = make("cache/" + ENTRY)
        for text in ("cache list", "cache prune", "plan -m 64 -N 64 -k 64"):
            outcome = run(text)
            if outcome.status != 0 or outcome.peak_kib > MOST_KIB:
                fail(f"{text} with {kind} as an entry", outcome, "is harmed by it")
        del held
    shutil.rmtree("cache")


# ---- Texts ---------------------------------------------------------------------------------

STEERING = [*range(1, 9), *range(11, 32), *range(0x7f, 0xa0), 0x61c, 0x200e, 0x200f,
            *range(0x202a, 0x202f), *range(0x2066, 0x206a)]


def texts_of(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from texts_of(inner, path + (key,))
    if isinstance(value, str):
        yield path


def armed(document, path, poison):
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = poison + at[path[-1]] + poison
    if isinstance(at, dict):
        at["key" + poison] = poison
    return copy


def harmless(what, outcome, *pages):
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err), *pages):
        found = [hex(ord(c)) for c in text if ord(c) in STEERING]
        if found:
            fail(what, outcome, f"{name} has {found[:5]}")


def test_texts_of_files_do_not_steer_terminals_or_pages():
    poison = "".join(map(chr, STEERING))
    kinds = {"good.json": ("report FILE -o p.html", "compare FILE GOOD", "compare GOOD FILE"),
             "trace.json": ("report FILE -o p.html",),
             "recording.json": ("trace --merge FILE",)}
    for name, commands in kinds.items():
        document = json.loads(Path(name).read_text())
        for path in texts_of(document):
            if path[0] in ("traceEvents", "results", "ranks") and path[1] > 1:
                continue  # like those before
            for ascii_only in (True, False):
                raw = poison if ascii_only else "".join(c for c in poison if ord(c) >= 0x7f)
                Path("x.json").write_text(json.dumps(armed(document, path, raw),
                                                     ensure_ascii=ascii_only))
                for text in commands:
                    Path("p.html").unlink(missing_ok=True)
                    outcome = run(text, "x.json")
                    page = Path("p.html")
                    pages = [("the page", page.read_text())] if page.exists() else []
                    for _, body in pages:
                        assert not re.search(r"\\u(00[89]|061c|200[ef]|202[a-e]|206[6-9])", body), path
                    harmless(f"{text} with {path} of {name}", outcome, *pages)
    builtin = HERE.parents[1] / "bench/profiles/h200-8.profile"
    lines = [line for line in builtin.read_text().splitlines() if not line.startswith("device")]
    Path("x.profile").write_text("\n".join([*lines, f"device = {poison.strip()}", ""]))
    harmless("a profile's device", run("plan", ENTWINE_PROFILE="./x.profile"))
    harmless("a profile's device", run("plan --profile ./x.profile"))
    Path("x.profile").write_text(f"kind = {poison}\n")
    harmless("a profile's value", run("plan --profile ./x.profile"))
    Path("x.suite").write_text(f"{poison} 1 1 1 1 {poison}\n")
    harmless("a suite", run("bench --suite ./x.suite"))


# ---- Numbers -------------------------------------------------------------------------------

def test_documents_are_the_same_with_a_decimal_comma():
    Path("comma.src").write_text('LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\n'
                                 "END LC_NUMERIC\n")
    if not shutil.which("localedef"):
        raise Skip("no localedef")
    subprocess.run(["localedef", "-c", "-i", "./comma.src", "./comma"], capture_output=True)
    comma = {"LC_ALL": "comma", "LANG": "comma", "LOCPATH": os.getcwd()}
    shutil.copytree(HERE / "data/cache", "cache")
    after = str(HERE / "data/after.json")
    for text in (f"compare GOOD {after}", "compare GOOD GOOD -o json", "trace --merge recording.json",
                 "report GOOD -o -", f"trace {SMALL} -n 1 -o -", f"run {SMALL} -n 2 -o json",
                 f"run {SMALL} -n 2 -o csv", f"run {SMALL} -n 2", f"plan {SHAPE} --gflops 7.5",
                 "plan --profile h200-8 -m 512 -N 512 -k 512", "sim -o json", "cache list",
                 "compare GOOD GOOD --threshold 2.5%"):
        plain, other = run(text), run(text, **comma)
        if other.status != plain.status or gist(other.out) != gist(plain.out):
            fail(text, other, f"differs from {plain.out[:300]!r}")


# ---- Writers -------------------------------------------------------------------------------

def is_whole(path, kind):
    text = Path(path).read_text()
    if kind == "html":
        return text.rstrip().endswith("</html>")
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def left_over(folder="."):
    return [name for name in os.listdir(folder) if ".tmp-" in name]


def each_writer():
    for name, (text, _, kind) in WRITERS.items():
        shutil.rmtree("d", ignore_errors=True)
        os.mkdir("d")
        yield name, text, kind
        assert not left_over("d"), f"{name} leaves {left_over('d')}"
    shutil.rmtree("d")


def written(name, outcome, path, kind):
    if outcome.status != 0 or not is_whole(path, kind):
        fail(name, outcome, "is not written")


def test_writers_replace_files():
    for name, text, kind in each_writer():
        Path("d/x").write_text("old")
        os.link("d/x", "d/kept")  # shows that the old file was not written to
        os.chmod("d/x", 0o640)
        written(name, run(text, "d/x"), "d/x", kind)
        assert Path("d/kept").read_text() == "old", name
        assert stat.S_IMODE(os.stat("d/x").st_mode) == 0o640, name


def test_writers_keep_links():
    for name, text, kind in each_writer():
        os.mkdir("d/inner")
        Path("d/inner/x").write_text("old")
        os.symlink("inner/x", "d/link")
        written(name, run(text, "d/link"), "d/inner/x", kind)
        assert os.readlink("d/link") == "inner/x", name
        assert not left_over("d/inner"), name


def test_writers_to_stdout_by_name():
    for name, text, kind in each_writer():
        for path in ("/dev/stdout", "/proc/self/fd/1", "-"):
            with open("d/out", "wb") as out:
                outcome = end(start(text, path, stdout=out))
            body = Path("d/out").read_text()
            if outcome.status != 0 or ("</html>" if kind == "html" else "}") not in body:
                fail(f"{name} to {path} as a file", outcome, f"is lost: {body[:100]!r}")
            outcome = run(text, path)
            if outcome.status != 0 or ("</html>" if kind == "html" else "}") not in outcome.out:
                fail(f"{name} to {path} as a pipe", outcome, "is lost")


def test_writers_to_pipes():
    for name, text, kind in each_writer():
        os.mkfifo("d/pipe")
        process = start(text, "d/pipe")
        body = Path("d/pipe").read_text()
        assert end(process).status == 0, name
        assert ("</html>" if kind == "html" else "}") in body, name
        assert stat.S_ISFIFO(os.stat("d/pipe").st_mode), name
        outcome = run(text, "d/pipe")  # nobody reads
        if outcome.status != 2 or "fix:" not in outcome.err:
            fail(name, outcome, "to a pipe without a reader")


def test_writers_to_devices():
    for name, text, kind in each_writer():
        assert run(text, "/dev/null").status == 0, name
        outcome = run(text, "/dev/full")
        if outcome.status != 5 or "No space left" not in outcome.err or "fix:" not in outcome.err:
            fail(name, outcome, "to a full device")
        for device in ("/dev/null", "/dev/full"):
            assert stat.S_ISCHR(os.stat(device).st_mode), name


def test_writers_with_long_names():
    for name, text, kind in each_writer():
        path = "d/" + "x" * 255
        written(name, run(text, path), path, kind)


def test_writers_to_folders_that_refuse():
    for name, text, kind in each_writer():
        Path("d/x").write_text("old")
        for path in ("d", "none/x", "d/x/y"):
            outcome = run(text, path)
            if outcome.status != 2 or "fix:" not in outcome.err:
                fail(f"{name} to {path}", outcome, "is no clear error")
        os.symlink("nothing", "d/link")
        assert run(text, "d/link").status == 2, name
        assert Path("d/x").read_text() == "old", name


def as_nobody():
    os.setgroups([])
    os.setgid(54321)
    os.setuid(54321)


def test_writers_to_folders_of_others():
    if os.geteuid() != 0:
        raise Skip("needs root, to be another user")
    for folder in (Path(ENTWINE).parent, Path.cwd()):
        for parent in (folder, *folder.parents):
            if not os.stat(parent).st_mode & 0o001:
                raise Skip(f"another user cannot enter {parent}")
    for name, text, kind in each_writer():
        Path("d/x").write_text("old")
        outcome = run(text, "d/x", before=as_nobody)
        if outcome.status != 2 or "Permission denied" not in outcome.err:
            fail(name, outcome, "as another user")
        assert Path("d/x").read_text() == "old", name


def on_full_disk(script):
    """Runs a shell script in `d`, a file system of 16 KiB that is full."""
    inner = f"mount -t tmpfs -o size=16k none d && echo old > d/x && head -c 9000 /dev/zero > d/rest && {script}"
    words = ["unshare", "--mount", "sh", "-c", inner]
    if os.geteuid() != 0:
        words[1:1] = ["--user", "--map-root-user"]
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)


def test_writers_on_a_full_disk():
    os.mkdir("d")
    probe = on_full_disk("true")
    if probe.returncode != 0:
        raise Skip(f"no file system can be mounted: {probe.stderr.strip()}")
    for name, text, kind in each_writer():
        words = " ".join(command(text, "d/x"))
        done = on_full_disk(f"{words} >/dev/null; echo $?; cat d/x; ls d")
        if done.stdout.split() != ["5", "old", "rest", "x"] or "No space left" not in done.stderr:
            raise AssertionError(f"{name}: {done.stdout!r} {done.stderr!r}")


def test_writers_that_are_killed():
    for name, text, kind in each_writer():
        Path("d/x").write_text('"old</html>"\n')
        for blow in range(40):
            process = start(text, "d/x")
            time.sleep(0.0005 * blow)
            os.kill(process.pid, signal.SIGKILL)
            end(process)
            if Path("d/x").read_text() != '"old</html>"\n' and not is_whole("d/x", kind):
                raise AssertionError(f"{name} leaves a piece")
        for leftover in left_over("d"):
            os.unlink("d/" + leftover)  # its name harms nobody


def test_leftovers_are_no_obstacle():
    """Names with any process's id in them, as earlier versions and repeated ids have left them."""
    for name, text, kind in each_writer():
        for number in range(3000):
            Path(f"d/x.tmp-{number}").touch()
            Path(f"d/x.tmp-{os.getpid() + number}").touch()
        before = set(os.listdir("d"))
        written(name, run(text, "d/x"), "d/x", kind)
        assert set(os.listdir("d")) == before | {"x"}, name
        for leftover in left_over("d"):
            os.unlink("d/" + leftover)


# ---- Calls that fail in turn ---------------------------------------------------------------

def build(name):
    """A library to be preloaded."""
    library = os.path.abspath(f"{name}.so")
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler):
        raise Skip("no compiler")
    subprocess.run([compiler, "-std=c11", "-shared", "-fPIC", f"-I{HERE.parents[1] / 'include'}",
                    str(HERE / f"{name}.c"), "-ldl", "-o", library], check=True)
    return library


def build_failing():
    library = build("fail_nth")
    probe = run("--version", LD_PRELOAD=library, FAIL_CALL="open", FAIL_NTH="0", FAIL_MARK="mark")
    if probe.status != 0:
        raise Skip("seccomp filters are refused here")
    return library


def gist(text):
    """What does not vary from run to run, nor with what is found out about the machine."""
    try:
        document = json.loads(text)
        document.get("otherData", document).pop("context", None)
        return document
    except (ValueError, AttributeError):
        return text


def judge(what, outcome, good, nth_of):
    """An error and the old file, or all that a run without failures has."""
    text, kind, call = nth_of
    document = Path("d/x").read_text() if kind else outcome.out
    if outcome.status not in (2, 3, 5, good.status):
        fail(what, outcome, "does not end well")
    if left_over("d") or left_over():
        fail(what, outcome, f"leaves {left_over('d') + left_over()}")
    if kind and document != "old\n" and not is_whole("d/x", kind):
        fail(what, outcome, "leaves a piece")
    if outcome.status == good.status and "error[" not in outcome.err:
        if gist(document) != good.gist:
            fail(what, outcome, "claims success, but the output differs")
    elif "error[" not in outcome.err and call != "write":  # a message needs a write, too
        fail(what, outcome, "gives no error")


def sweep(library, text, kind, call, good):
    """Every n until a run makes fewer calls; allocations are many, and far ones are sampled."""
    step, nth, fired = 1, 1, 0
    while True:
        Path("mark").unlink(missing_ok=True)
        Path("d/x").write_text("old\n")
        outcome = run(text, "d/x", LD_PRELOAD=library, FAIL_CALL=call, FAIL_NTH=str(nth),
                      FAIL_MARK="mark")
        if not Path("mark").exists():
            return fired
        fired += 1
        judge(f"{text}, {call} {nth} fails", outcome, good, (text, kind, call))
        nth += step
        if nth > 300:
            step = max(1, nth // 25)


CALLS = ("malloc", "open", "read", "fstat", "write", "fsync", "rename", "close", "random")


def test_every_call_that_fails_while_an_entry_is_stored():
    """A tuner that does not measure finds another winner: the entry stays as it was, or is the new
    one, and the next run finds either."""
    failing, tuner = build_failing(), build("fake_tune")
    text = "tune -m 64 -N 64 -k 64 -W 1 -q"
    assert run(text, LD_PRELOAD=tuner).status == 0
    (name,) = os.listdir("cache")
    old = Path("cache", name).read_bytes()
    for call in CALLS:
        nth = 0
        while True:
            nth += 1
            Path("mark").unlink(missing_ok=True)
            Path("cache", name).write_bytes(old)
            outcome = run(text, LD_PRELOAD=f"{failing} {tuner}", FAKE_TUNE="b", FAIL_CALL=call,
                          FAIL_NTH=str(nth), FAIL_MARK="mark")
            if not Path("mark").exists():
                break
            what = f"{text}, {call} {nth} fails"
            stored = Path("cache", name).read_bytes()
            if outcome.status not in (0, 2, 3, 5) or (outcome.status and call != "write" and
                                                      "error[" not in outcome.err):
                fail(what, outcome, "does not end well")
            if os.listdir("cache") != [name]:
                fail(what, outcome, f"leaves {os.listdir('cache')}")
            if outcome.status == 0 and stored == old:
                fail(what, outcome, "claims success, but nothing is stored")
            if "# Entries : 1 " not in run("cache list").out:
                fail(what, outcome, "leaves a piece")
        assert nth > 1 or call == "fstat", f"no {call} was made to fail"


def test_every_call_that_fails():
    library = build_failing()
    swept = {**{name: (text, kind) for name, (text, _, kind) in WRITERS.items() if name != "run -J"},
             "compare": ("compare GOOD GOOD", None), "merge": ("trace --merge recording.json", None),
             "cache": ("cache list", None), "sim": ("sim -o json", None)}
    os.mkdir("d")
    for name, (text, kind) in swept.items():
        good = run(text, "d/x")
        good.gist = gist(Path("d/x").read_text() if kind else good.out)
        for call in CALLS:
            fired = sweep(library, text, kind, call, good)
            if call in ("malloc", "write") or (kind and call in ("open", "fsync", "rename", "close")):
                assert fired, f"{name}: no {call} was made to fail"
    shutil.rmtree("d")


# ---- All of them ---------------------------------------------------------------------------

def main():
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    wanted = sys.argv[2:] or tests
    unknown = set(wanted) - set(tests)
    if unknown:
        sys.exit(f"check_files.py: no test {', '.join(sorted(unknown))}")
    failed = 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            os.chdir(folder)
            shutil.copy(HERE / "data/before.json", "good.json")
            run(f"trace {SMALL} -n 1 -o trace.json")
            subprocess.run([sys.executable, str(HERE / "make_recordings.py")], check=True)
            shutil.copy("odd.json", "recording.json")
            begun = time.monotonic()
            try:
                tests[name]()
                verdict = "ok"
            except Skip as why:
                verdict = f"skipped: {why}"
            except AssertionError as why:
                verdict = f"FAILED: {why}"
                failed += 1
            print(f"{name}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
            os.chdir("/")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

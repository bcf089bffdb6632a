/* The stylesheet: one column that fits a phone, figures that scroll inside themselves, the
 * system's light or dark, and ink on paper.  Series colours differ in lightness as well as
 * in hue, after Okabe and Ito. */
#include "report_page.h"

static const char colours[] =
    ":root{color-scheme:light dark;--paper:#fff;--card:#fff;--ink:#1b1f24;--muted:#59636e;"
    "--grid:#e3e7eb;--line:#d5dae0;--tail:#d55e00;--badge:#a84700;--reduce:#1b1f24;--"
    "accent:#0072b2;"
    "--s0:#8b949e;--s1:#0072b2;--s2:#009e73;--s3:#cc79a7;--s4:#56b4e9;--s5:#e6b400;"
    "--s6:#6b4c9a;--s7:#b5a900}\n"
    "@media (prefers-color-scheme:dark){:root{--paper:#0e1116;--card:#151a21;--ink:#e6e9ed;"
    "--muted:#9aa4af;--grid:#2a313a;--line:#2f3742;--tail:#ff7f32;--badge:#ff9a5c;--reduce:"
    "#e6e9ed;"
    "--accent:#58b0ea;--s0:#7d8590;--s1:#3aa0e6;--s2:#23c393;--s3:#e397c0;--s4:#9bd4f7;"
    "--s5:#f2cf45;--s6:#a283d8;--s7:#d7cc3f}}\n"
    "@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#000;"
    "--muted:#444;--grid:#ddd;--line:#bbb;--tail:#d55e00;--badge:#8a3a00;--reduce:#000;--"
    "accent:#0072b2;"
    "--s0:#8b949e;--s1:#0072b2;--s2:#009e73;--s3:#cc79a7;--s4:#56b4e9;--s5:#e6b400;"
    "--s6:#6b4c9a;--s7:#b5a900}}\n"
    /* The second eight are the first, paler. */
    ":root{--s8:color-mix(in srgb,var(--s0) 50%,var(--paper));"
    "--s9:color-mix(in srgb,var(--s1) 50%,var(--paper));"
    "--s10:color-mix(in srgb,var(--s2) 50%,var(--paper));"
    "--s11:color-mix(in srgb,var(--s3) 50%,var(--paper));"
    "--s12:color-mix(in srgb,var(--s4) 50%,var(--paper));"
    "--s13:color-mix(in srgb,var(--s5) 50%,var(--paper));"
    "--s14:color-mix(in srgb,var(--s6) 50%,var(--paper));"
    "--s15:color-mix(in srgb,var(--s7) 50%,var(--paper))}\n";

static const char text[] =
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;"
    "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
    "main,body>header,footer{max-width:60rem;margin:0 auto;padding:0 1rem}\n"
    "body>header{padding-top:2.5rem}\n"
    "h1{font-size:2.1rem;line-height:1.15;margin:0 0 .3rem;letter-spacing:-.02em}\n"
    "h2{font-size:1.5rem;line-height:1.25;margin:3rem 0 .5rem;padding-top:1.25rem;"
    "border-top:2px solid var(--accent)}\n"
    "h3{font-size:1.2rem;margin:2.5rem 0 .5rem}\n"
    "h4{font-size:1.05rem;margin:0}\n"
    "h5{font-size:.85rem;font-weight:600;margin:0 0 .25rem;color:var(--muted)}\n"
    "p{margin:.4rem 0}\n"
    ".lead{font-size:1.05rem;color:var(--muted);max-width:46rem}\n"
    "code{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:.85em;"
    "overflow-wrap:anywhere}\n"
    "a{color:var(--accent)}\n"
    "nav ol{columns:18rem;padding-left:1.4rem;font-size:.9rem}\n"
    ".warning{border-left:4px solid var(--badge);padding:.5rem "
    ".9rem;background:var(--card);"
    "max-width:46rem}\n"
    "footer{color:var(--muted);font-size:.85rem;padding:2rem 1rem 3rem}\n"
    "footer dt{font-weight:600;color:var(--ink)}footer dd{margin:0 0 .5rem}\n";

static const char pieces[] =
    "figure{margin:1.25rem 0;padding:1rem 1.1rem;background:var(--card);"
    "border:1px solid var(--line);border-radius:.6rem}\n"
    "figcaption{font-size:.88rem;color:var(--muted);max-width:46rem;margin:.2rem 0 "
    ".6rem;overflow-wrap:anywhere}\n"
    ".plot{overflow-x:auto}.plot "
    "svg{display:block;width:100%;height:auto;min-width:42rem}\n"
    ".panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),"
    "1fr)"
    ");"
    "gap:1rem}.panels>div{min-width:0}.panels .plot svg{min-width:18rem}\n"
    "svg,svg g,svg text{font-family:inherit}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;"
    "margin:.6rem 0 .2rem;font-size:.85rem}.legend li{display:flex;align-items:center;"
    "gap:.4rem;overflow-wrap:anywhere}\n"
    ".box{width:.85rem;height:.85rem;border-radius:.15rem;flex:none;"
    "print-color-adjust:exact;-webkit-print-color-adjust:exact}.mark{font-size:1rem;"
    "line-height:1;print-color-adjust:exact;-webkit-print-color-adjust:exact}\n"
    ".badges{margin:.15rem 0;display:flex;flex-wrap:wrap;gap:.3rem}.badges:empty{"
    "display:none}\n"
    ".badge{display:inline-block;font-size:.72rem;font-weight:600;padding:.08rem .5rem;"
    "border:1.5px solid var(--badge);color:var(--badge);border-radius:1rem}\n"
    ".table{overflow:auto;max-height:24rem;margin:.75rem 0;border-top:1px solid "
    "var(--line)}\n"
    "table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;"
    "width:100%}\n"
    "th,td{padding:.22rem .6rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--grid);vertical-align:top}\n"
    "thead th{position:sticky;top:0;background:var(--card);color:var(--muted)}\n"
    "tbody th,.text{text-align:left}tbody th,td{font-weight:400}\n"
    ".wrap{white-space:normal;min-width:16rem}\n"
    ".facts th{white-space:nowrap;color:var(--muted);width:9rem}.facts "
    "td{white-space:normal;"
    "text-align:left;overflow-wrap:anywhere}\n"
    ".again{font-size:.8rem;color:var(--muted);margin:.6rem 0 0}\n"
    ".numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));"
    "gap:.75rem;margin:1rem 0;padding:0;list-style:none}\n"
    ".numbers li{border:1px solid var(--line);border-radius:.6rem;padding:.7rem .9rem;"
    "background:var(--card);font-size:.82rem;color:var(--muted)}\n"
    ".numbers b{display:block;font-size:1.7rem;line-height:1.2;color:var(--ink);"
    "letter-spacing:-.02em}\n";

static const char places[] =
    "@media (max-width:40rem){figure{padding:.8rem .7rem}h1{font-size:1.6rem}"
    ".wrap{white-space:normal;min-width:16rem}\n"
    ".facts th{width:6rem;white-space:normal}.numbers{grid-template-columns:1fr 1fr}"
    ".numbers b{font-size:1.35rem}}\n"
    "@page{margin:14mm}\n"
    "@media print{body{font-size:10pt}nav{display:none}main,body>header,footer{"
    "max-width:none;padding:0}.plot,.table{overflow:visible;max-height:none}"
    ".plot svg,.panels .plot "
    "svg{min-width:0}.numbers{grid-template-columns:repeat(4,1fr)}.numbers "
    "b{font-size:1.3rem}thead th{position:static}"
    "table{font-size:7.5pt}th,td{padding:.1rem .3rem}td.config{white-space:normal;"
    "overflow-wrap:anywhere}figure{border:0;padding:0}"
    ".plot,.panels>div,.numbers,tr{break-inside:avoid}h2,h3,h4,h5,.legend,.badges{"
    "break-after:avoid}svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\n";

void report_style(FILE *out)
{
    fputs("<style>\n", out);
    fputs(colours, out);
    fputs(text, out);
    fputs(pieces, out);
    fputs(places, out);
    fputs("</style>\n", out);
}

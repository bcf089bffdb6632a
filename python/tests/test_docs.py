"""The programs in docs/PYTHON.md, QUICKSTART.md and ADAPTERS.md run as they stand there."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import run_program

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("PYTHON", "QUICKSTART", "ADAPTERS")
PROGRAMS = {f"{page}-{number}": text for page in PAGES for number, text in
            enumerate(re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S))}


@pytest.mark.parametrize("name", ["PYTHON-0", "QUICKSTART-0"])
def test_the_quickstart_has_ten_lines(name):
    lines = [line for line in PROGRAMS[name].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, tmp_path):
    text = PROGRAMS[name]
    needed = {module for module, sign in (("torch", "entwine.torch"), ("torch", "import torch"),
                                          ("transformers", "entwine.transformers"),
                                          ("accelerate", "entwine.transformers")) if sign in text}
    for module in needed:
        pytest.importorskip(module, reason=f"{module} is not installed: THIS PROGRAM WAS NOT RUN")
    script = tmp_path / "program.py"
    script.write_text(text)
    if needed:
        ran = run_program(script, folder=tmp_path, ranks=2 if text.startswith("# torchrun") else 1,
                          limit=400)
    else:
        ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True,
                             timeout=400)
    assert ran.returncode == 0, ran.stderr

"""The programs in docs/PYTHON.md and docs/QUICKSTART.md run as they stand there."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAMS = {f"{page}-{number}": text for page in ("PYTHON", "QUICKSTART") for number, text in
            enumerate(re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S))}


@pytest.mark.parametrize("name", ["PYTHON-0", "QUICKSTART-0"])
def test_the_quickstart_has_ten_lines(name):
    lines = [line for line in PROGRAMS[name].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, tmp_path):
    if "entwine.torch" in PROGRAMS[name]:
        pytest.importorskip("torch", reason="torch is not installed: THIS PROGRAM WAS NOT RUN")
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[name])
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True,
                         timeout=120)
    assert ran.returncode == 0, ran.stderr

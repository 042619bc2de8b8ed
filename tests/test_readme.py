"""Every Python snippet of the README runs as written, in order, in a process and a folder of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_readme_has_snippets():
    assert len(SNIPPETS) >= 6


@pytest.mark.slow
def test_readme_snippets_run_in_order(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(SNIPPETS))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1, 10])" in done.stdout


def test_readme_links_to_files_that_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []

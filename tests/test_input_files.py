"""Which files a plugin's text names, found without running it."""

from __future__ import annotations

from pathlib import Path

from relaxc.service.input_files import kernel_files
from tests.triton_kernels import EXAMPLE


def test_literals_name_files_beside_the_plugin(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "raise SystemExit\nA = ['a.py:f', 'b/c.py:g', 'a.py:h']\nB = 'a.py: no', 'x' + '.py:f', b'd.py:f'\n"
    )
    assert kernel_files(plugin) == [tmp_path / "a.py", tmp_path / "b/c.py"]


def test_what_cannot_be_read_names_none(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n 'a.py:f'")
    assert kernel_files(tmp_path / "broken.py") == kernel_files(tmp_path / "absent.py") == []


def test_the_example_names_its_kernel() -> None:
    assert kernel_files(EXAMPLE) == [EXAMPLE.with_name("gelu_add_triton.py")]

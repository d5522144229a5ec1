"""Every setting, error, rule, pass, verb and option is documented, and what the documents name exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.generate import PAGES, drawn_tree
from relaxc.schedules import cpu
from relaxc.service import errors
from relaxc.service.cli.app import app
from relaxc.service.config import Settings
from relaxc.service.errors import RelaxcError, by_code
from tests.test_layers import ROOT

DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))


def commands() -> dict[str, Any]:
    """Every verb's parsed command by its words: `compile`, `cache ls`."""
    found: dict[str, Any] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while pending:
        words, command = pending.pop()
        found[" ".join(words)] = command
        pending += [((*words, name), child) for name, child in getattr(command, "commands", {}).items()]
    return found


COMMANDS = commands()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "run `make fix`"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name: str) -> None:
    assert f"`RELAXC_{name.upper()}`" in (ROOT / "docs/settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", by_code().values(), ids=lambda kind: kind.code)
def test_every_error_is_drawn_at_its_place_and_documented(kind: type[RelaxcError]) -> None:
    if kind is RelaxcError:
        return
    parent, meaning = drawn_tree()[kind.__name__]
    assert parent == kind.__bases__[0].__name__
    assert meaning
    assert f"`{kind.code}`" in (ROOT / "docs/errors.md").read_text(encoding="utf-8")


def test_every_drawn_error_exists_with_the_drawn_exit_code() -> None:
    for name in drawn_tree():
        assert issubclass(getattr(errors, name), RelaxcError)
    for name, exit_code in re.findall(r"^[├└]── (\w+) +exit (\d)", errors.__doc__ or "", re.MULTILINE):
        assert getattr(errors, name).exit_code == int(exit_code)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_verb_and_option_has_help(words: str) -> None:
    command = COMMANDS[words]
    assert command.help, f"relaxc {words} has no help"
    silent = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert not silent, f"relaxc {words} says nothing about {silent}"


def test_what_the_page_of_commands_says_of_all_verbs_holds() -> None:
    """docs/cli.md names `--verbose` and `--json` once, and not beside each verb."""
    for words, command in COMMANDS.items():
        if words and not hasattr(command, "commands"):
            options = {name for parameter in command.params for name in parameter.opts}
            needed = {"--verbose"} if words in ("serve", "worker", "records export") else {"--verbose", "--json"}
            assert options >= needed, words


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    wrong = [line for line in _command_lines(text) if not _exists(line)]
    assert not wrong, "\n".join(wrong)


def test_every_rule_has_a_row_in_adding_a_schedule() -> None:
    """Its name, what it takes, what bounds it, and its tests. A row may stand before its rule is in the list."""
    text = (ROOT / "docs/adding_a_schedule.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(cpu\.\w+)` \| (.+) \| (.+) \| `(tests/[\w/.]+)` \|$", text, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert sorted(set(names)) == sorted(names)
    assert {rule.name for rule in cpu.RULES} <= set(names), "docs/adding_a_schedule.md lacks a row"
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "schedules/cpu").rglob("*.py"))
    assert [name for name in names if f'name = "{name}"' not in sources] == []


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\((\w+\.md)\)", index))


def test_troubleshooting_names_errors_that_exist() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    named = {
        code for line in re.findall(r"^\*\*.*?\*\*", text, re.MULTILINE) for code in re.findall(r"`([a-z-]+)`", line)
    }
    assert named and named <= set(by_code())


def test_the_glossary_is_in_order_and_defines_each_word_once() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert words == sorted(set(words), key=str.lower)


def _command_lines(text: str) -> list[str]:
    """The lines of shell blocks, and the code spans, that run something of ours."""
    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    joined = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line.strip() for line in [*joined, *spans] if re.match(r"\s*(relaxc [a-z]|make [a-z]|python -m )", line)]


def _exists(line: str) -> bool:
    words = shlex.split(line.partition(" | ")[0], comments=True)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words[1:] if "=" not in word)
    if words[0] == "python":
        return words[2] in ("venv", "pip", "pytest") or _is_module(words[2])
    return all(_verb_exists(["relaxc", *choice]) for choice in _choices(words[1:]))


def _choices(words: list[str]) -> list[list[str]]:
    """`cache ls|explain|gc` as three commands."""
    for index, word in enumerate(words):
        if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word):
            return [[*words[:index], one, *words[index + 1 :]] for one in word.split("|")]
    return [words]


def _verb_exists(words: list[str]) -> bool:
    verb = next((" ".join(words[1:end]) for end in (3, 2) if " ".join(words[1:end]) in COMMANDS), None)
    if verb is None:
        return False
    known = {name for parameter in COMMANDS[verb].params for name in parameter.opts + parameter.secondary_opts}
    used = [word.strip("[]").partition("=")[0] for word in words[1:] if word.strip("[]").startswith("-")]
    return all(option in known | {"--help"} or option[:2] in known for option in used if len(option) > 1)


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


CURRENT = [path for path in DOCUMENTS if path.parent.name != "decisions"]  # a decision tells of its own time


@pytest.mark.parametrize("path", CURRENT, ids=lambda path: path.name)
def test_named_files_exist(path: Path) -> None:
    """Code spans such as `tests/cli` and `service/errors.py`; patterns with capitals or stars are not meant."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = {word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()}
    ours = {word for word in words if re.fullmatch(r"(tests|service|schedules|docs|examples)/[a-z0-9_/.]+", word)}
    assert sorted(word for word in ours if not (ROOT / word).exists()) == []


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's Python blocks, in order, on a model with the input that they name."""
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, [1, 3, 224, 224]), value("y", TensorProto.FLOAT, [1, 3, 224, 224])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    env = {**os.environ, "RELAXC_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    code = f"{blocks}\nassert outputs['y'].shape == (1, 3, 224, 224)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

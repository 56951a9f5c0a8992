"""No module of the package imports itself through others, not even for types or inside a function."""

import ast
import itertools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[2] / "python"
#: Provides public names at their first use; no lower module can import it.
DOOR = "qaic"


def imports(root: Path) -> dict[str, set[str]]:
    """Module -> modules that it imports anywhere, in the files below a folder."""
    paths = {name_of(path.relative_to(root)): path for path in root.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        found = graph[module] = set()
        for statement in ast.walk(ast.parse(path.read_text())):
            match statement:
                case ast.Import(names=aliases):
                    found.update(alias.name for alias in aliases)
                case ast.ImportFrom(module=source, names=aliases, level=0):
                    # `from package import module` runs the package first, so it can include a circle through
                    # the package.
                    names = [f"{source}.{alias.name}" for alias in aliases]
                    found.update(name if name in paths else source for name in names)
                case ast.ImportFrom():
                    pytest.fail(f"{path}:{statement.lineno}: relative imports are not followed here")
        found &= paths.keys() - {module}
    return graph


def name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, each imported by the one before it."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_module_imports_itself_through_others():
    graph = imports(PYTHON)
    # If the test read other files, or missed imports inside functions, it would always pass.
    assert {"qaic.qpc.extract", "qaic.cli.qpc"} <= graph.keys()
    assert "qaic.qpc.extract" in graph["qaic.qpc"]
    del graph[DOOR]
    assert circle({module: found - {DOOR} for module, found in graph.items()}) == []


@pytest.mark.parametrize(
    "closing",
    [
        "from made import first",
        "import made.first",
        "from made import name, first",
        "from made.first import name",
        "def function():\n    from made.first import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.first import name",
    ],
)
def test_a_circle_is_named(tmp_path, closing):
    package = tmp_path / "made"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from made.second import name")
    (package / "second.py").write_text("import made.third")
    (package / "third.py").write_text("name = 1")
    assert circle(imports(tmp_path)) == []
    (package / "third.py").write_text(closing)
    found = circle(imports(tmp_path))
    assert set(found) == {"made.first", "made.second", "made.third"}
    assert found[0] == found[-1]
    assert all(target in imports(tmp_path)[source] for source, target in itertools.pairwise(found))


def way(graph: dict[str, set[str]], first: str, last: str) -> list[str]:
    """The shortest chain of imports from one module to another."""
    ways, seen = [[first]], {first}
    for path in ways:
        if path[-1] == last:
            return path
        # The list grows while it is read, so near modules come first.
        ways += [[*path, name] for name in sorted(graph[path[-1]] - seen)]
        seen |= graph[path[-1]]
    pytest.fail(f"no way from {first} to {last}")


def test_an_option_is_followed_to_its_pass_through_few_files():
    graph = imports(PYTHON)
    # The package's first file, the steps of a compilation, the list of passes, and the pass.
    doors = {"cli.compile": 4, "cli.openqaic.commands.compile": 4, "compilation": 4, "session": 5}
    for door, step in itertools.product(doors, ("assign_precision", "emulation.mxfp6_weights")):
        found = way(graph, f"qaic.{door}", f"qaic.compiler.passes.{step}")
        assert len(found) <= doors[door], found


def test_private_modules_are_imported_only_within_their_package():
    private = [
        (module, name)
        for module, found in imports(PYTHON).items()
        for name in found
        if name.rpartition(".")[2].startswith("_")
    ]
    assert ("qaic.report.html", "qaic.report._data") in private
    for module, name in private:
        assert f"{module}.".startswith(f"{name.rpartition('.')[0]}."), f"{module} imports {name}"

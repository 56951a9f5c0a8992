"""Checks that the package under test was built from this checkout."""

import filecmp
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("qaic", "qaicrt", "QAicApi_pb2")


def difference(package: Path, compiled: Path) -> str | None:
    """Return the difference between the imported package and the sources of this checkout, or ``None``.

    An editable installation uses the Python files of this checkout; an installed wheel must have equal ones.
    The compiled module must be newer than every Rust source, which is the rule of `make`.
    """
    sources, installed = ROOT / "python", package.parent
    if installed != sources:
        for path in sorted(path for name in PACKAGES for path in (sources / name).rglob("*.py")):
            other = installed / path.relative_to(sources)
            if not other.exists() or not filecmp.cmp(path, other, shallow=False):
                return f"{other} is not the same as {path}"
    rust = [ROOT / "Cargo.lock", *ROOT.glob("rust/*/Cargo.toml"), *ROOT.glob("rust/*/src/**/*.rs")]
    newest = max(rust, key=lambda path: path.stat().st_mtime)
    if newest.stat().st_mtime > compiled.stat().st_mtime:
        return f"{compiled} is older than {newest}"
    return None

"""Tests refuse a package that was built from sources other than those of the checkout."""

import os
import shutil

import pytest

import checkout


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A checkout with a compiled module that is newer than its sources."""
    for name in ("python/qaic/a.py", "python/qaicrt/b.py", "rust/qaic-sync/src/lib.rs", "Cargo.lock"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (1000, 1000))
    compiled = tmp_path / "_core.abi3.so"
    compiled.touch()
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    return tmp_path


def installed(tree):
    """The package of a wheel that was built from the checkout."""
    return shutil.copytree(tree / "python", tree / "site-packages") / "qaic"


def test_editable_package_and_equal_wheel_are_of_the_checkout(tree):
    for package in (tree / "python" / "qaic", installed(tree)):
        assert checkout.difference(package, tree / "_core.abi3.so") is None


@pytest.mark.parametrize("change", ["other", "missing"])
def test_wheel_of_other_python_files_is_refused(tree, change):
    package = installed(tree)
    path = package.parent / "qaicrt" / "b.py"
    if change == "other":
        path.write_text("as it was")
    else:
        path.unlink()
    found = checkout.difference(package, tree / "_core.abi3.so")
    assert found == f"{path} is not the same as {tree / 'python' / 'qaicrt' / 'b.py'}"


@pytest.mark.parametrize("source", ["rust/qaic-sync/src/lib.rs", "Cargo.lock"])
def test_compiled_module_that_is_older_than_its_sources_is_refused(tree, source):
    os.utime(tree / "_core.abi3.so", (1500, 1500))
    os.utime(tree / source, (2000, 2000))
    found = checkout.difference(tree / "python" / "qaic", tree / "_core.abi3.so")
    assert found == f"{tree / '_core.abi3.so'} is older than {tree / source}"

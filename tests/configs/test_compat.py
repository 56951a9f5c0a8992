"""Configuration classes under the module paths of QAIRT: opt-in, reversible, never over the real package."""

import importlib
import sys

import pytest

from qaic import compat, configs
from qaic.errors import StateError


@pytest.fixture
def installed():
    compat.install_qairt()
    yield
    compat.uninstall_qairt()


def test_documented_imports_work(installed):
    from qairt.api.common.backends.aic.config import AicCompilerConfig, AicConfigHelper, AicRuntimeConfig
    from qairt.api.common.backends.htp.config import HtpGraphConfig
    from qairt.api.common.backends.htp_mcp.config import HtpMcpGraphConfig
    from qairt.api.compiler.config import CompileConfig, CompilerConfig, CompilerModes

    assert AicCompilerConfig is configs.AicCompilerConfig
    assert AicConfigHelper is configs.AicConfigHelper
    assert AicRuntimeConfig is configs.AicRuntimeConfig
    assert HtpGraphConfig is configs.HtpGraphConfig
    assert HtpMcpGraphConfig is configs.HtpMcpGraphConfig
    assert CompilerConfig is CompileConfig is configs.CompileConfig
    assert CompilerModes is configs.CompilerModes


def test_modules_are_reached_as_attributes_too(installed, capsys):
    import qairt

    assert qairt.CompileConfig is configs.CompileConfig
    qairt.api.common.backends.htp.list_options()
    assert "HtpGraphConfig" in capsys.readouterr().out
    assert qairt.api.common.backends.aic.list_config_types() == {"compiler", "runtime"}
    for name in compat._MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            assert getattr(module, public) is not None
        assert dir(module) == sorted(module.__all__)


def test_what_is_not_there_says_so(installed):
    import qairt

    with pytest.raises(AttributeError, match="configurations only"):
        _ = qairt.convert
    with pytest.raises(ImportError):
        importlib.import_module("qairt.api.converter")


def test_nothing_is_there_without_the_call():
    assert importlib.util.find_spec("qairt") is None


def test_twice_is_once(installed):
    first = sys.modules["qairt"]
    compat.install_qairt()
    assert sys.modules["qairt"] is first


def test_uninstalling_leaves_nothing():
    compat.install_qairt()
    compat.uninstall_qairt()
    assert not [name for name in sys.modules if name.split(".")[0] == "qairt"]
    with pytest.raises(ImportError):
        importlib.import_module("qairt.api.compiler.config")
    compat.uninstall_qairt()


def test_a_folder_of_that_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "qairt").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    compat.install_qairt()
    from qairt.api.compiler.config import CompileConfig

    assert CompileConfig is configs.CompileConfig
    compat.uninstall_qairt()


@pytest.mark.parametrize("is_imported", [False, True])
def test_the_real_package_is_never_replaced(tmp_path, monkeypatch, is_imported):
    package = tmp_path / "qairt"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    if is_imported:
        importlib.import_module("qairt")
    with pytest.raises(StateError, match="is installed") as caught:
        compat.install_qairt()
    assert caught.value.code == "compat.qairt_present"
    assert str(package) in str(caught.value)
    compat.uninstall_qairt()
    assert importlib.import_module("qairt").real
    sys.modules.pop("qairt")
    importlib.invalidate_caches()

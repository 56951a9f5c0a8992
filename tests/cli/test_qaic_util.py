"""``qaic-util`` as its users see it, and scripts that parse its output."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import qaicrt
from child_process import WATCHDOG_S, started
from qaic import _core
from qaic.cli import device_info
from qaic.cli.device_info import DeviceTable, device_lines
from qaic.cli.util import main

ORDER = [
    "Status",
    "PCI Address",
    "PCI Info",
    "Dev Link",
    "HW Version",
    "HW Serial",
    "FW Version",
    "FW QC_IMAGE_VERSION",
    "FW OEM_IMAGE_VERSION",
    "FW IMAGE_VARIANT",
    "NSP Version",
    "NSP QC_IMAGE_VERSION",
    "NSP OEM_IMAGE_VERSION",
    "NSP IMAGE_VARIANT",
    "Dram Total",
    "Dram Free",
    "Dram Fragmentation",
    "Vc Total",
    "Vc Free",
    "Pc Total",
    "Pc Reserved",
    "Nsp Total",
    "Nsp Free",
    "Last 100ms Average Dram Bw",
    "MCID Total",
    "MCID Free",
    "Semaphore Total",
    "Semaphore Free",
    "Constants Loaded",
    "Constants In-Use",
    "Networks Loaded",
    "Networks Active",
    "NSP Frequency(Mhz)",
    "DDR Frequency(Mhz)",
    "COMPNOC Frequency(Mhz)",
    "MEMNOC Frequency(Mhz)",
    "SYSNOC Frequency(Mhz)",
    "Metadata Version",
    "NNC Command Protocol Version",
    "SBL Image",
    "PVS Image Version",
    "NSP Defective PG Mask",
    "Sku Type",
    "Board serial",
    "Device Capabilities",
    "SoC temperature(degree C)",
    "Board power(Watts)",
    "TDP Cap(Watts)",
]


@pytest.fixture(autouse=True)
def two_cards(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "cpu")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")


@pytest.fixture
def run(capfd):
    def runner(*arguments):
        try:
            code = main(list(arguments))
        except SystemExit as error:
            code = error.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return runner


def shell(command: str) -> str:
    """Runs a pipeline of a script, in which UTIL is the tool."""
    command = command.replace("UTIL", f"{sys.executable} -m qaic.cli.util")
    return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout


def test_query_is_what_it_does_alone(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert run("-q") == (0, out, "")
    assert run("--query") == (0, out, "")


def test_query_has_the_documented_lines(run):
    _, out, _ = run("-q")
    lines = out.splitlines()
    assert lines[0].startswith("LRT QC_IMAGE_VERSION:OPENQAIC.")
    assert lines[1] == "LRT IMAGE_VARIANT:OPENQAIC"
    assert lines[2:4] == ["Number of devices: 2", "QID 0"]
    assert lines[4 + len(ORDER)] == "QID 1"
    device = lines[4 : 4 + len(ORDER)]
    assert [line.split(":", 1)[0] for line in device] == [f"\t{label}" for label in ORDER]
    for form in (
        "\tStatus:Ready",
        r"\tPCI Address:0000:00:00\.0",
        r"\tHW Version:0\.2\.0\.0",
        r"\tFW Version:\d+\.\d+\.\d+",
        "\tDram Total:32692 MB",
        r"\tDram Fragmentation:0\.00%",
        "\tNsp Total:16",
        r"\tLast 100ms Average Dram Bw:\d+(\.\d+)? KBps",
        "\tMCID Total:3072",
        "\tSemaphore Total:32",
        r"\tNSP Frequency\(Mhz\):825\.00",
        r"\tNSP Defective PG Mask: 0x[0-9A-F]+",
        "\tSku Type:PCIe",
        r"\tMetadata Version:1\.0",
        r"\tBoard power\(Watts\):0\.00",
    ):
        assert any(re.fullmatch(form, line) for line in device), form


def test_parsers_of_clients_find_what_they_look_for(run):
    _, out, _ = run("-q")
    assert out.split("Nsp Total:")[1].split()[0] == "16"
    assert out.split("Nsp Free:")[1].split()[0] == "16"
    assert [text.split()[0] for text in out.split("Status:")[1:]] == ["Ready", "Ready"]
    variant = re.search(r"FW IMAGE_VARIANT\s*:\s*(\S+)", out).group(1)
    assert variant
    assert "AIC200" not in variant


@pytest.mark.virtual_card("another test covers the properties of cards")
@pytest.mark.parametrize(("family", "generation"), [("", "AIC100"), ("ai100", "AIC100"), ("ai200", "AIC200")])
def test_the_image_names_the_family_that_clients_compile_for(run, monkeypatch, family, generation):
    monkeypatch.setenv("QAIC_CPU_FAMILY", family)
    _, out, _ = run("-q")
    for image in ("FW", "NSP"):
        assert re.search(rf"{image} IMAGE_VARIANT\s*:\s*{generation}\.CPU\b", out)


def groups_of_several(text, cores, devices):
    """Groups of ready devices that can run one program, by the serial number of their board.

    The test reads what clients read before they compile a program for several devices.
    """
    boards = {}
    for number, record in re.findall(r"^QID (\d+)\s*$(.*?)(?=^QID |\Z)", text, re.M | re.S):
        facts = dict(line.strip().split(":", 1) for line in record.splitlines() if ":" in line)
        words = facts.get("Device Capabilities", "").split()
        able = "HybridBoot+" in words and "MDP+" in words and facts["Status"] == "Ready"
        if able and int(facts["Nsp Total"]) >= cores and facts["Board serial"].strip():
            boards.setdefault(facts["Board serial"], []).append(int(number))
    return [sorted(group)[:devices] for group in boards.values() if len(group) >= devices]


@pytest.mark.parametrize(
    ("cards", "groups"), [(1, []), (3, []), (4, [[0, 1, 2, 3]]), (9, [[0, 1, 2, 3], [4, 5, 6, 7]])]
)
def test_four_virtual_cards_are_a_board_that_runs_programs_over_several(run, monkeypatch, cards, groups):
    monkeypatch.setenv("QAIC_CPU_DEVICES", str(cards))
    _, out, _ = run("-q")
    assert groups_of_several(out, 16, 4) == groups
    assert groups_of_several(out, 17, 4) == []
    # Scripts count the lines with both words.
    lines = [line for line in out.splitlines() if "Device Capabilities" in line]
    assert sum("HybridBoot+" in line and "MDP+" in line for line in lines) == cards


def test_boards_stay_the_same_where_devices_are_hidden(run, monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "8")
    monkeypatch.setenv("QAIC_VISIBLE_DEVICES", "2,4,5,6,7")
    assert groups_of_several(run("-q")[1], 16, 4) == [[4, 5, 6, 7]]


def test_pipes_of_scripts_work():
    assert shell("UTIL -q | grep -c 'Nsp Free:16'") == "2\n"
    assert shell("UTIL -q | grep -e Status -e QID") == "QID 0\n\tStatus:Ready\nQID 1\n\tStatus:Ready\n"
    assert shell("UTIL -q | grep 'Dram Total' | grep -oE '[0-9]+'") == "32692\n32692\n"
    awk = 'UTIL | awk \'/^QID /{q=$2} /Status:/{split($0,s,":")} /Nsp Total:/{split($0,t,":")} '
    awk += '/Nsp Free:/{split($0,f,":"); print q, s[2], t[2], f[2]}\''
    assert shell(awk) == "0 Ready 16 16\n1 Ready 16 16\n"


def test_devices_can_be_chosen(run):
    _, out, _ = run("-q", "-d", "1")
    assert re.findall("^QID (.*)", out, re.M) == ["1"]
    assert "Number of devices: 1\n" in out
    _, out, _ = run("-d", "1", "--aic-device-id", "0", "-d", "1")
    assert re.findall("^QID (.*)", out, re.M) == ["0", "1"]


def test_an_unknown_device_is_invalid(run):
    code, out, err = run("-q", "-d", "7")
    assert (code, err) == (3, "Device 7 invalid\n")
    assert "QID" not in out
    code, out, err = run("-d", "7", "-d", "0", "-d", "9")
    assert (code, err) == (3, "Device 7 invalid\nDevice 9 invalid\n")
    assert "QID 0\n" in out


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("Board serial==CPU-BOARD-0000", ["0", "1"]),
        ("HW Serial==CPU-0001", ["1"]),
        ("board SERIAL == CPU-BOARD-0000 ", ["0", "1"]),
        ("QID==1", ["1"]),
        ("Dram Total==32692 MB", ["0", "1"]),
        ("NSP Defective PG Mask==0x0", ["0", "1"]),
        ("Status==Error", []),
    ],
)
def test_filter(run, condition, expected):
    code, out, err = run("-q", "-f", condition)
    assert (code, err) == (0, "")
    assert re.findall("^QID (.*)", out, re.M) == expected
    assert f"Number of devices: {len(expected)}\n" in out


def test_filter_that_cannot_match_is_wrong_usage(run):
    code, out, err = run("-f", "Bord serial==X")
    assert (code, out) == (2, "")
    assert (
        err
        == "error: -f: no device has a property 'Bord serial'; did you mean 'Board serial'? [option.filter]\n"
    )
    code, _, err = run("-f", "Status=Ready")
    assert code == 2
    assert "is not KEY==VALUE" in err


def test_json_file(run, tmp_path):
    path = tmp_path / "devices.json"
    path.write_text("old")
    code, out, err = run("-q", "-j", str(path))
    assert (code, err) == (0, "")
    assert "QID 1" in out
    devices = json.loads(path.read_text())["device_info"]
    assert [
        {key: device[key] for key in ("qid", "dev_status", "sku_type", "nsp_total", "nsp_free")}
        for device in devices
    ] == [
        {"qid": number, "dev_status": "Ready", "sku_type": "PCIe", "nsp_total": 16, "nsp_free": 16}
        for number in (0, 1)
    ]
    assert devices[0]["dram_total"] == 32692
    assert devices[0]["nsp_frequency_mhz"] == 825.0
    assert devices[0]["fw_image_variant"]
    assert len(devices[0]) == 1 + len(ORDER)
    assert list(tmp_path.iterdir()) == [path]


def test_json_without_a_query_prints_nothing_else(run, tmp_path):
    path = tmp_path / "devices.json"
    assert run("-j", str(path), "-f", "QID==1") == (0, "", "")
    assert [device["qid"] for device in json.loads(path.read_text())["device_info"]] == [1]
    code, out, _ = run("-q", "-j", "-")
    assert code == 0
    assert len(json.loads(out)["device_info"]) == 2


def test_json_into_a_place_that_does_not_exist(run, tmp_path):
    code, _, err = run("-q", "-j", str(tmp_path / "missing" / "devices.json"))
    assert code == 1
    assert "missing" in err


def test_json_into_a_device(run):
    code, _, err = run("-j", "/dev/null")
    assert (code, err) == (0, "")
    assert not Path("/dev/null").is_file()


def test_new_json_files_have_ordinary_rights(run, tmp_path):
    (tmp_path / "other").write_text("")
    run("-j", str(tmp_path / "devices.json"))
    assert (tmp_path / "devices.json").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("option", ["-s", "-a"])
def test_virtual_cards_need_no_reset_and_no_enabling(run, option):
    code, out, err = run(option)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == ["QID 0", "QID 1"]
    assert "nothing to" in out


def test_reset_of_one_address(run):
    code, out, _ = run("-s", "-p", "0000:00:00.0")
    assert code == 0
    assert "nothing to reset" in out
    code, _, err = run("-s", "-p", "0000:99:00.0")
    assert code == 3
    assert "no device has this PCI address" in err


def test_version(run):
    code, out, err = run("-V")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"qaic-util \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quary"], "unknown option --quary; did you mean --query?"),
        (["-z"], "unknown option -z"),
        (["-d", "one"], "invalid int value: 'one'"),
        (["-t", "0"], "'0' is not a number of seconds of at least 0.1"),
        (["-t", "nan"], "'nan' is not a number of seconds"),
        (["-t", "1", "-q"], "not allowed with"),
        (["-t", "1", "-j", "x"], "-j needs a query"),
        (["-p", "0000:00:00.0"], "it needs -s"),
        (["extra"], "unexpected argument extra"),
    ],
)
def test_wrong_usage(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_help_is_success(run):
    code, out, _ = run("-h")
    assert code == 0
    assert "-j" in out


def test_cards_that_cannot_be_counted_are_a_device_failure(run, monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "none-such")
    code, _, err = run("-q")
    assert code == 3
    assert "none-such" in err


def device(**changes):
    info = qaicrt.Util().getDeviceInfo(0)[1]
    for name, value in changes.items():
        target = info
        *path, last = name.split("__")
        for step in path:
            target = getattr(target, step)
        setattr(target, last, value)
    return device_info.describe(info, card={"firmware": None})


def test_a_device_that_is_not_ready_shows_what_is_known():
    shown = device(devStatus=qaicrt.QDevStatus.QDS_ERROR)
    assert [fact.label for fact in shown.facts] == [*ORDER[:4], *ORDER[-3:]]
    assert shown.status == "Error"
    assert device(devStatus=qaicrt.QDevStatus.QDS_INITIALIZING).status == "Initializing"


def test_conditional_lines_and_exact_forms():
    shown = device(
        pciInfo__domain=0,
        pciInfo__bus=0x81,
        pciInfo__device=2,
        pciInfo__function=1,
        pciInfo__pcieExtInfo__maxLinkSpeed=4,
        pciInfo__pcieExtInfo__maxLinkWidth=8,
        pciInfo__pcieExtInfo__currLinkSpeed=9,
        pciInfo__pcieExtInfo__currLinkWidth=4,
        name="/dev/accel/accel0",
        devData__hwVersion=0x1234_0506,
        devData__fwVersionMajor=1,
        devData__fwVersionMinor=2,
        devData__fwVersionPatch=3,
        devData__fwVersionBuild=4,
        devData__fwFeaturesBitmap=1,
        devData__nspPgMask=0xFFFF_FFFF_0000_AAAA,
        devData__resourceInfo__skuType=10,
        devData__performanceInfo__dramBw=12.5,
        devData__serial="0x1\x1b[2J",
    )
    texts = {fact.label: fact.text for fact in shown.facts}
    assert texts["PCI Address"] == "0000:81:02.1"
    assert [texts[label] for label in ("Max Link Speed", "Max Link Width")] == ["16GT/s", "x8"]
    assert [texts[label] for label in ("Current Link Speed", "Current Link Width")] == ["Unknown", "x4"]
    assert texts["Dev Link"] == "/dev/accel/accel0 "
    assert texts["HW Version"] == "1.564.5.6"
    assert texts["FW Version"] == "1.2.3.4"
    assert texts["FW Features"] == "[FUSA]"
    assert texts["NSP Defective PG Mask"] == " 0xAAAA"
    assert texts["Sku Type"] == "Invalid"
    assert texts["Last 100ms Average Dram Bw"] == "12.5 KBps"
    assert texts["HW Serial"] == "0x1\\x1b[2J"
    assert "Device Capabilities" not in texts


def test_table_in_a_pipe_is_one_table(run):
    code, out, err = run("-t", "1")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert out.count("DeviceID-") == 2
    assert "DeviceID-0 --- Status: Ready --- FW Version: " in out
    assert run("-t", "1", "-d", "1")[1].count("DeviceID-") == 1
    assert run("-t", "1", "-d", "9") == (3, "", "Device 9 invalid\n")


def test_boxes():
    lines = list(device_lines(device(), per_row=4))
    assert len(lines) == 1 + 2 * 3
    assert lines[1:4] == [
        "+-NSP Used / Total-++NW Loaded / Active++DRAM Used / Total-++--DRAM Bandwidth--+",
        "|      0 / 16      ||      0 / 0       ||   0 / 32692 MB   ||    0.00 KBps     |",
        "+------------------++------------------++------------------++------------------+",
    ]
    assert lines[5] == "|    825.00 Mhz    ||   2133.00 Mhz    ||     Invalid      ||     Invalid      |"
    assert {len(line) for line in lines} == {80}


def test_boxes_of_a_broken_device():
    lines = list(device_lines(device(devStatus=qaicrt.QDevStatus.QDS_ERROR), per_row=8))
    assert lines[0].strip("= ") == "DeviceID-0 --- Status: Error --- FW Version: Invalid"
    assert lines[2].count("Invalid") == 8


def test_keys_choose_a_device():
    table = DeviceTable(list, period_seconds=1)
    places = [table._selected]
    for key in (b"\x1b[C", b"\t", b"n", b"p", b"x", b"\x1b[D", b"\x1b[D", b"\x1b[D"):
        table._press(key, 2)
        places.append(table._selected)
    assert places == [None, 0, 1, None, 1, 1, 0, None, 1]


class Terminal:
    """The table, in a separate terminal."""

    def __init__(self, *arguments):
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (30, 100))
        self.before = termios.tcgetattr(self.slave)
        self._ends = contextlib.ExitStack()
        self._ends.callback(os.close, self.master)
        self._ends.callback(os.close, self.slave)
        pipes = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        command = [sys.executable, "-m", "qaic.cli.util", *arguments]
        self.process = self._ends.enter_context(started(command, start_new_session=True, **pipes))
        self.seen = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ends.close()

    def until(self, text):
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], WATCHDOG_S)
            assert ready, f"{text!r} did not appear; seen: {self.seen!r}"
            self.seen += os.read(self.master, 65536).decode()

    def end(self):
        code = self.process.wait(WATCHDOG_S)
        self.until("\x1b[?1049l")
        assert termios.tcgetattr(self.slave) == self.before
        return code


@pytest.mark.parametrize(("ending", "code"), [("ctrl-c", 0), ("q", 0), ("term", 128 + signal.SIGTERM)])
def test_table_on_a_terminal_gives_it_back(ending, code):
    with Terminal("-t", "0.1") as terminal:
        terminal.until("DeviceID-1 ---")
        os.write(terminal.master, b"\x1b[C")
        terminal.until("DeviceID-0  (arrows")
        if ending == "ctrl-c":
            terminal.process.send_signal(signal.SIGINT)
        elif ending == "q":
            os.write(terminal.master, b"q")
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == code
    assert terminal.seen.startswith("\x1b[?1049h\x1b[?25l")
    assert "Traceback" not in terminal.seen


def test_table_follows_the_size_of_the_terminal():
    with Terminal("-t", "1000") as terminal:
        terminal.until("DeviceID-1 ---")
        termios.tcsetwinsize(terminal.slave, (8, 100))
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until(" more;")
        os.write(terminal.master, b"q")
        assert terminal.end() == 0


def test_query_reports_a_device_that_does_not_answer(run, monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    control = _core.NoopControl(1)
    control.lose()
    try:
        code, out, _ = run("-q")
    finally:
        control.recover()
    assert code == 0
    assert out.count("\tStatus:Error\n") == 1
    assert out.count("\tStatus:Ready\n") == 1
    assert "\tReason:" in out.split("QID ")[2]


@pytest.fixture
def cards(monkeypatch):
    monkeypatch.setenv("QAIC_KMD", "emu")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "1")
    monkeypatch.delenv("QAIC_DEVICE", raising=False)


@pytest.mark.usefixtures("cards")
class TestCards:
    """An emulated card and a virtual card in one list."""

    def test_are_listed_first_with_their_link_and_sensors(self, run):
        code, out, err = run("-q")
        assert (code, err) == (0, "")
        card, virtual = out.split("QID ")[1:]
        link = ["Max Link Speed", "Max Link Width", "Current Link Speed", "Current Link Width"]
        labels = [label for label in ORDER if label != "Device Capabilities"]
        assert re.findall(r"^\t([^:]+):", card, re.M) == [*labels[:3], *link, *labels[3:]]
        for form in (
            "Status:Ready",
            r"PCI Address:0000:01:00\.0",
            "PCI Info:.*Cloud AI 100.*",
            "Max Link Speed:16GT/s",
            "Current Link Width:x8",
            "Dev Link:/dev/accel/accel0 ",
            r"HW Version:0\.2\.0\.0",
            "Nsp Free:16",
            r"SoC temperature\(degree C\):45\.00",
            r"Board power\(Watts\):20\.00",
            r"TDP Cap\(Watts\):75\.00",
            "Board serial:.+",
        ):
            assert re.search(f"^\t{form}$", card, re.M), form
        assert virtual.startswith("1\n\tStatus:Ready")
        assert "\tDevice Capabilities:HybridBoot+ MDP+" in virtual
        assert "\tSoC temperature(degree C):0.00" in virtual

    def test_json_has_both(self, run):
        code, out, _ = run("-j", "-")
        assert code == 0
        card, virtual = json.loads(out)["device_info"]
        assert [(one["qid"], one["dev_status"], one["nsp_total"]) for one in (card, virtual)] == [
            (0, "Ready", 16),
            (1, "Ready", 16),
        ]
        assert card["sku_type"] == "PCIe"
        assert (card["soc_temperature_degree_c"], card["board_power_watts"]) == (45.0, 20.0)

    def test_table_shows_temperature_and_power(self, run):
        code, out, _ = run("-t", "1", "-d", "0")
        assert code == 0
        assert "45.00 C" in out
        assert "20.0 / 75.0 W" in out
        assert "DeviceID-0 --- Status: Ready" in out

    def test_filters_reach_what_a_card_says(self, run):
        assert run("-q", "-f", "PCI Address==0000:01:00.0")[1].count("QID ") == 1

    def test_one_that_cannot_be_opened_says_why(self, run, monkeypatch):
        monkeypatch.setenv("QAIC_EMU_FAULTS", "open@1=EACCES*all")
        code, out, _ = run("-q")
        assert code == 0
        card, virtual = out.split("QID ")[1:]
        assert "\tStatus:Error\n" in card
        assert re.search(r"^\tReason:.*/dev/accel/accel0.*$", card, re.M)
        assert "\tPCI Address:0000:01:00.0\n" in card
        assert "Nsp Total" not in card
        assert "\tSoC temperature(degree C):45.00" in card
        assert "\tStatus:Ready\n" in virtual

    def test_reset_reaches_cards_and_not_the_others(self, run):
        control = _core.EmuControl(0)
        code, out, err = run("-s")
        assert (code, err) == (0, "")
        assert [line.split(":")[0] for line in out.splitlines()] == ["QID 0", "QID 1"]
        assert "its programs are lost" in out.splitlines()[0]
        assert "nothing to reset" in out.splitlines()[1]
        control.hurry()
        assert "\tStatus:Ready" in run("-q", "-d", "0")[1]
        code, out, _ = run("-s", "-d", "1")
        assert (code, len(out.splitlines())) == (0, 1)
        code, out, _ = run("-s", "-p", "0000:01:00.0")
        assert (code, out.split(":")[0]) == (0, "QID 0")
        control.hurry()

    def test_nothing_is_enabled_on_cards(self, run):
        code, out, _ = run("-a")
        assert code == 0
        assert out.count("nothing to enable") == 2


def test_no_device_at_all_is_a_device_failure(run, monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "kmd")
    monkeypatch.setenv("QAIC_KMD", "sys")
    if qaicrt.Util().getDeviceIds()[1]:
        pytest.skip("this machine has cards")
    code, _, err = run("-q")
    assert code == 3
    assert "no device was found" in err
    assert "hint: " in err
    with pytest.raises(Exception, match="device"):
        qaicrt.Context()

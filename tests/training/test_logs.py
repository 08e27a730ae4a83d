"""The metric log over kills, the curve, the report, progress lines and device peaks."""

import json
import struct
import sys
import types

import jax
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.training.hosts import devices
from ptm_jax.training.logs import console, logs
from ptm_jax.training.logs.figures import figure


def write(log, steps):
    for step in steps:
        log.write(
            step,
            "train",
            {"loss": 5.0 / step, "grad_norm": 1.0},
            tokens=10 * step,
            seconds=0.1 * step,
        )
        if step % 4 == 0:
            log.write(step, "heldout", {"loss": 6.0 / step}, tokens=10 * step, seconds=0.1 * step)


def test_a_resumed_log_equals_the_uninterrupted_one(tmp_path):
    with logs.RunLog(tmp_path / "whole", ()) as log:
        log.resume(0)
        write(log, range(1, 13))
    whole = (tmp_path / "whole/metrics.jsonl").read_bytes()
    with logs.RunLog(tmp_path / "killed", ()) as log:
        log.resume(0)
        write(log, range(1, 10))
    path = tmp_path / "killed/metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 10, "spl')
    with logs.RunLog(tmp_path / "killed", ()) as log:
        log.resume(4)
        assert (
            logs.find(log.workdir, 4, "heldout") == {"loss": 1.5}
            and logs.find(log.workdir, 8, "heldout") is None
        )
        write(log, range(5, 13))
    assert path.read_bytes() == whole
    with logs.RunLog(tmp_path / "killed", ()) as log:
        log.resume(0)
    assert path.read_bytes() == b""


def test_a_line(tmp_path):
    log = logs.RunLog(tmp_path, ())
    log.write(3, "train", {"loss": float("nan"), "accuracy": 0.5}, tokens=7.0, seconds=1.23456)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    values = {"loss": None, "accuracy": 0.5}
    assert json.loads(line) == {
        "step": 3,
        "split": "train",
        "values": values,
        "tokens": 7,
        "seconds": 1.235,
    }
    log.close()
    log.write(4, "train", {"loss": 1.0}, tokens=8, seconds=2.0)
    assert [line["step"] for line in logs.read(tmp_path)] == [3, 4]


def test_an_unreadable_line_is_left_out_with_a_warning(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 1, "split": "train", "values": {}}\n\xff\n{"step": 2, "split": "train", '
        b'"values": {}}\n{"st'
    )
    assert [line["step"] for line in logs.read(tmp_path)] == [1, 2]
    assert capsys.readouterr().err.splitlines() == [
        f"line 2 of {tmp_path}/metrics.jsonl is not readable and left out"
    ]


def test_a_workdir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match="cannot write .*metrics.jsonl: Not a directory; .* name a workdir"
    ):
        logs.RunLog(tmp_path / "file").resume(0)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    with logs.RunLog(tmp_path) as log:
        log.resume(0)
        write(log, range(1, 5))
    (events,) = (tmp_path / "tensorboard").iterdir()
    data, tags = events.read_bytes(), 0
    while data:  # records: length, crc, payload, crc
        (length,) = struct.unpack("<Q", data[:8])
        tags += b"train/loss" in data[12 : 12 + length] or b"heldout/loss" in data[12 : 12 + length]
        data = data[16 + length :]
    assert tags == 5


def test_tensorboard_imports_no_torch(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("torch", "tensorboardX"):
            monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torch.py").write_text("raise AssertionError('torch was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with logs.RunLog(tmp_path) as log:
        log.resume(0)
        write(log, [1])
    assert list((tmp_path / "tensorboard").iterdir()) and "torch" not in sys.modules


def test_no_tensorboard_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with logs.RunLog(tmp_path) as log:
        write(log, [1])
    assert len(list(logs.read(tmp_path))) == 1


def test_curve_and_report(tmp_path):
    pytest.importorskip("matplotlib")
    assert logs.curve(tmp_path) is None
    with logs.RunLog(tmp_path, ()) as log:
        write(log, range(1, 41))
    path = logs.curve(tmp_path, baseline=6.9)
    assert path == tmp_path / "loss.png" and path.read_bytes()[:4] == b"\x89PNG"
    (tmp_path / "checkpoints/step_00000040").mkdir(parents=True)
    path = logs.report(
        tmp_path, {"system": "bert_mini", "steps": 40, "tokens": 1234567, "a|b": "c|d\ne"}
    )
    text = path.read_text()
    for expected in (
        "# bert_mini",
        "| tokens | 1,234,567 |",
        r"| a\|b | c\|d e |",
        "## Last heldout metrics, step 40\n\n| metric | value |\n|---|---|\n| loss | 0.1500 |",
        "![Loss over steps](loss.png)",
        "| metrics | `metrics.jsonl` |",
        "| checkpoint | `checkpoints/step_00000040` |",
    ):
        assert expected in text
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoints",
        "loss.png",
        "metrics.jsonl",
        "report.md",
    ]


def test_progress_without_a_terminal(capsys):
    with console.Progress(100, 40, seconds=3600) as progress:
        progress.update(50, {"loss": 2.5}, 12345.6, 0.314)
        progress.update(60, {"loss": 2.4}, 12345.6, None)
        progress.update(100, {"loss": 2.3}, 1000.0, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 50/100  loss 2.5000  tokens/s 12,346  utilisation 31%  0:0")
    assert lines[1:] == ["step 100/100  loss 2.3000  tokens/s 1,000  0:00 left"]
    with console.Progress(100, quiet=True) as progress, progress.compiling():
        progress.update(100, {"loss": 2.5}, 1.0)
    assert capsys.readouterr().err == ""


def test_the_time_left_does_not_count_compiling(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    progress = console.Progress(100, seconds=0)
    with progress.compiling():
        clock[0] = 600.0
    clock[0] = 610.0
    progress.update(50, {}, 1.0)
    assert capsys.readouterr().err == "step 0/100  compiling\nstep 50/100  tokens/s 1  0:10 left\n"


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    with console.Progress(1_000_000, 40) as progress:
        with progress.compiling():
            assert "step 40/1000000" in (
                compiling := capsys.readouterr().err
            ) and compiling.endswith(" compiling")
        progress.update(999_990, {"loss": 2.5}, 1234567.6, 0.314)
        drawn = capsys.readouterr().err.removeprefix("\r\x1b[K")
        assert drawn.endswith("━━ loss 2.5000  tokens/s 1,234,568  0:00 left") and len(drawn) < 80
        progress.update(999_991, {"loss": 2.5}, 123456.7, 0.314)
        assert " ━ loss 2.5000  tokens/s 123,457  utilisation 31%  0:00 left" in (
            drawn := capsys.readouterr().err
        )
        assert len(drawn.removeprefix("\r\x1b[K")) == 79
        console.say("a line between")
        assert capsys.readouterr().err == "\r\x1b[Ka line between\n"
        progress.update(1_000_000, {"loss": 2.5}, 12345.6, 0.314)
    console.bar("tokenizing", 5, 10)
    console.bar("tokenizing", 10, 10)
    shown = capsys.readouterr().err
    assert (
        "1000000/1000000 ━ loss" in shown
        and "loss 2.5000  tokens/s 12,346  utilisation 31%  0:00 left\n" in shown
    )
    assert shown.endswith("tokenizing  50%\r\x1b[Ktokenizing 100%\n")


@pytest.mark.parametrize(
    "kind, bfloat16, float32",
    [
        ("TPU v4", 275, 275),
        ("TPU v5 lite", 197, 197),
        ("TPU v5e", 197, 197),
        ("TPU v5", 459, 459),
        ("TPU v5p", 459, 459),
        ("TPU v6 lite", 918, 918),
        ("TPU v6e", 918, 918),
        ("NVIDIA A100-SXM4-80GB", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989.4, 494.7),
        ("NVIDIA H100 PCIe", 756, 378),
        ("NVIDIA H200", 989.4, 494.7),
        ("Tesla V100-SXM2-16GB", 15.7, 15.7),
    ],
)
def test_peaks(kind, bfloat16, float32):
    device = types.SimpleNamespace(platform="tpu" if "TPU" in kind else "gpu", device_kind=kind)
    assert devices.peak_flops(device) == bfloat16 * 1e12
    assert devices.peak_flops(device, "float32") == float32 * 1e12


def test_utilisation():
    chips = [types.SimpleNamespace(platform="tpu", device_kind="TPU v4", n=n) for n in range(2)]
    chips = [type("Chip", (), vars(chip))() for chip in chips]
    assert devices.utilisation(275e12, 1.0, chips) == 0.5
    unknown = type("Chip", (), {"platform": "gpu", "device_kind": "abacus"})()
    assert devices.utilisation(1.0, 1.0, [unknown]) is None and devices.peak_flops(unknown) is None
    cpu = jax.devices("cpu")[0]
    rate = devices.peak_flops(cpu, "float32")
    assert rate > 0 and rate == devices.peak_flops(cpu, "float32"), "measured once"
    assert devices.utilisation(rate, 2.0, [cpu, cpu], "float32") == pytest.approx(0.5)


def test_a_cpu_that_is_faster_than_it_was_measured(monkeypatch):
    """Measured beside another program, and with bfloat16 slower than float32: 287% was the first
    rate alone."""
    rates = {
        ("bfloat16", 0): 1e10,
        ("float32", 0): 2e10,
        ("bfloat16", 1): 1e10,
        ("float32", 1): 5e10,
    }
    monkeypatch.setattr(devices, "_measured", lambda *what: rates[what])

    def used(flops, dtype="bfloat16"):
        return devices.utilisation(flops, 1.0, jax.devices("cpu")[:1], dtype)

    assert used(1.5e10) == 0.75 and used(2.87e10) == pytest.approx(0.574) and used(6e10) is None


@pytest.mark.parametrize(
    "value, text",
    [(3.14159, "3.1416"), (0.0, "0.0000"), (-2.5, "-2.5000"), (0.00012345, "0.000123"), (None, "")],
)
def test_a_figure_is_the_same_text_everywhere(value, text, tmp_path):
    assert figure(value) == text
    with logs.RunLog(tmp_path, ()) as log:
        log.write(
            1, "heldout", {"loss": float("nan") if value is None else value}, tokens=1, seconds=1
        )
    assert f"| loss | {text} |" in logs.report(tmp_path, {}).read_text()


def test_a_baseline_stands_beside_the_metric_that_it_bounds(tmp_path):
    """ELECTRA's loss is that of the generator and fifty times that of the discriminator."""

    def line(step, split, **values):
        return {"step": step, "split": split, "values": values}

    joint = [line(1, "train", loss=26.0, mlm_nll=6.1), line(1, "heldout", loss=25.0, mlm_nll=6.0)]
    plain = [line(1, "train", loss=6.1, nll=6.1), line(2, "heldout", loss=6.0, nll=6.0)]
    assert logs.drawn_metrics(joint, "mlm_nll", 6.4) == {"loss": None, "mlm_nll": 6.4}
    assert logs.drawn_metrics(plain, "nll", 6.4) == {"loss": 6.4}
    assert logs.drawn_metrics(plain, "loss", float("inf")) == {"loss": None}
    assert logs.drawn_metrics(joint, "absent", 6.4) == {"loss": None}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in joint))
    one = logs.curve(tmp_path, baseline=6.4, metric="loss").read_bytes()
    two = logs.curve(tmp_path, baseline=6.4, metric="mlm_nll").read_bytes()
    heights = [int.from_bytes(picture[20:24], "big") for picture in (one, two)]
    assert heights[1] == 2 * heights[0]

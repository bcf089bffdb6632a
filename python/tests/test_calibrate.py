"""What scripts/calibrate decides, on fixed inputs: a simulator that can be worked out by hand."""
import importlib.machinery
import importlib.util
import math
import os
import types

import pytest

PATH = os.path.join(os.path.dirname(__file__), "../../scripts/calibrate")


def load():
    if not os.path.exists(PATH):
        pytest.skip("the scripts are not here", allow_module_level=True)
    loader = importlib.machinery.SourceFileLoader("calibrate", PATH)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("calibrate", loader))
    loader.exec_module(module)
    return module


calibrate = load()


def a_call(**measured):
    call = calibrate.Call(256, 256, 64, "fp32", "entwine", "", 2, ran=True)
    for name, value in measured.items():
        setattr(call, name, value)
    return call


def a_number(key, value, call, window="gemm_us", **bounds):
    return calibrate.Number(key, value, "", call, window, **bounds)


@pytest.mark.parametrize("simulated_us, why", [
    (115.0, None),
    (85.0, None),
    (115.2, "the check is off by 15 %, more than 15 %: measured 100.0 us, SIMULATED with the "
            "profile 115.2 us"),
    (60.0, "the check is off by 40 %, more than 15 %: measured 100.0 us, SIMULATED with the "
           "profile 60.0 us"),
    (math.nan, "the check is off by nan %, more than 15 %: measured 100.0 us, SIMULATED with the "
               "profile nan us")])
def test_check_against_the_tolerance(simulated_us, why):
    assert calibrate.refutation([], a_call(time_us=100.0), simulated_us) == why


def test_check_that_could_not_run():
    judge = a_call(time_us=100.0, ran=False)
    assert calibrate.refutation([], judge, 100.0) == "the call of the check could not run"


@pytest.mark.parametrize("value, refuted", [(1e6, True), (1e-3, True), (34.0, False)])
def test_numbers_at_an_end_of_their_range(value, refuted):
    number = a_number("reducer_gbs", value, a_call(tail_us=1.0), "tail_us")
    why = calibrate.refutation([number], a_call(time_us=100.0), 100.0)
    assert why == (f"reducer_gbs = {value:g} cannot be true" if refuted else None)


def test_numbers_that_may_be_at_an_end():
    unmeasured = a_number("mem_gbs", 1e6, a_call(ran=False), "tail_us")
    bounded = a_number("publish_us", 0.0, a_call(), least=0, most=1e4)
    assert calibrate.refutation([unmeasured, bounded], a_call(time_us=100.0), 100.0) is None


def test_solve_finds_numbers_that_lean_on_each_other():
    """gemm = start + 2 block, tail = 1000 / rate + start."""
    one, other = a_call(gemm_us=70.0, tail_us=60.0), a_call(gemm_us=0.0, tail_us=60.0)
    start = a_number("start_us", 10.0, None)
    block = a_number("block_us", 1.0, one)
    rate = a_number("reducer_gbs", 10.0, other, "tail_us")
    numbers = types.SimpleNamespace(numbers=[start, block, rate], text=lambda: "")

    def simulate(call, text):
        return types.SimpleNamespace(gemm_us=start.value + 2 * block.value,
                                     tail_us=1000 / rate.value + start.value)
    calibrate.solve(numbers, simulate)
    assert block.value == pytest.approx(30.0, rel=1e-3)
    assert rate.value == pytest.approx(20.0, rel=1e-3)
    assert start.value == 10.0


def test_a_number_that_makes_no_difference_stays():
    number = a_number("start_us", 7.0, a_call(gemm_us=50.0))
    assert calibrate.solve_number(number, lambda value: 3.0) == 7.0


def test_profile_says_where_numbers_come_from():
    calibration = calibrate.Calibration(calibrate.Machine(False, 2, 2, device="some-cpu"))
    for call in calibration.calls:
        call.ran = call.method != "blas"
    lines = dict(line.split(" = ", 1) for line in calibration.text("measured DAY").splitlines())
    assert lines["kind"] == "cpu  # -"
    assert lines["block_us_128"].startswith("64:25 256:100 1024:400  # measured DAY: GEMM of seq")
    assert lines["blas_time"] == "1  # estimate: no call determines it here"
    assert lines["device"] == "some-cpu  # what was calibrated"


def test_gpus_with_links_keep_nccl_and_sharers_do_not():
    for sharers, numbers in ((1, 2), (8, 0)):
        machine = calibrate.Machine(True, 8, 0, 8 // sharers, sharers, 90, 132, 132 // sharers)
        found = calibrate.Calibration(machine).numbers
        assert sum(n.key.startswith("nccl_") and n.call is not None for n in found) == numbers

"""Kernels as Python until they are compiled."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest

from certimap.core.control import Control, TimeUp, controlled_by
from certimap.kernels import background, hashing, notice, tier
from certimap.kernels.jit import jit
from certimap.kernels.plain import NotPlain, plain, run_plain

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


@jit()
def doubled(values: np.ndarray) -> float:
    for i in range(values.shape[0]):
        values[i] *= 2.0
    return values[0]


@jit()
def exp_of(x: float) -> float:
    return np.exp(x)


@jit()
def inverse(values: np.ndarray, x: float) -> float:
    values[0] += 1.0
    return 1.0 / x


class Stand:
    """A dispatcher that compiles nothing, but counts how often it is told to."""

    def __init__(self, function, on_disk=False):
        self.py_func, self.targetctx, self._cache = function, None, self
        self.on_disk, self.compiled = on_disk, 0

    def typeof_pyval(self, value):
        return type(value)

    def has(self, signature, context):
        return self.on_disk

    def _compile_for_args(self, *arguments):
        self.compiled += 1
        return self.py_func


@pytest.fixture
def asked(monkeypatch):
    """The signatures requested from another process, which never ends its work."""
    found = []
    monkeypatch.setattr(background, "compile_soon", lambda kernel, signature: found.append(signature) or True)
    monkeypatch.setattr(background, "is_at_work", lambda: True)
    return found


def call(kernel, *arguments):
    return kernel(*arguments)(*arguments)


def test_small_calls_run_as_python_and_are_compiled_elsewhere(asked):
    stand, values = Stand(doubled.py_func), np.ones(3)
    kernel = tier.Tier(stand)
    assert [call(kernel, values) for _ in range(2)] == [2.0, 4.0]
    assert type(call(kernel, values)) is float
    assert (stand.compiled, len(asked)) == (0, 1)
    stand.on_disk = True
    assert call(kernel, values) == 16.0
    assert stand.compiled == 1


def test_large_calls_are_compiled(asked):
    stand = Stand(doubled.py_func)
    call(tier.Tier(stand), np.ones(tier.ENTRIES))
    assert stand.compiled == 0
    call(tier.Tier(stand), np.ones(tier.ENTRIES + 1))
    assert stand.compiled == 1


def endless(values):
    values[0] += 1.0
    while values[0] > 1.0:
        values[1] += 1.0
    return values[0]


def test_a_long_run_is_undone(asked, monkeypatch):
    monkeypatch.setattr(tier, "patience", 0.03)
    stand, values = Stand(endless), np.array([1.0, 0.0])
    kept = values.copy()
    kernel = tier.Tier(stand)
    kernel._compile = lambda *arguments: lambda given: given.tolist()
    assert call(kernel, values) == kept.tolist()
    assert not tier._running
    time.sleep(2 * tier._TICK)  # nothing is raised afterwards
    assert call(kernel, values) == kept.tolist()


def test_what_a_finalizer_swallows_is_not_printed(monkeypatch, capfd):
    class Slow:
        def __del__(self):
            stop = time.perf_counter() + 0.2
            while time.perf_counter() < stop:
                pass

    def run():
        Slow()  # the end arrives in its finalizer
        while True:
            pass

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    tier._watch.cache_clear()
    with pytest.raises(tier._Undone):
        tier._within(0.05, lambda: False, run, ())
    assert not tier._running
    assert capfd.readouterr().err == ""


def test_what_python_refuses_is_compiled(asked):
    values = np.zeros(1)
    stand = Stand(inverse.py_func)
    kernel = tier.Tier(stand)
    kernel._compile = lambda *arguments: lambda given, x: float(given[0])
    assert call(kernel, values, 0.0) == 0.0  # undone before
    assert inverse(np.zeros(1), 0.0) == math.inf


def interrupting(values):
    values[0] = 7.0
    raise KeyboardInterrupt


def test_an_interrupt_leaves_arrays_as_they_were(asked):
    values = np.zeros(1)
    with pytest.raises(KeyboardInterrupt):
        call(tier.Tier(Stand(interrupting)), values)
    assert values[0] == 0.0


@pytest.mark.parametrize("n", [tier.ENTRIES, tier.MOST_ENTRIES + 1])
def test_the_time_limit_ends_runs_and_waits(asked, monkeypatch, n):
    monkeypatch.setattr(tier, "patience", 0.0)
    monkeypatch.setattr(tier, "GRACE", 0.01)
    stand, values = Stand(endless), np.full(n, 2.0)
    with controlled_by(Control.starting_now(0.05)), pytest.raises(TimeUp, match="compiling kernels"):
        call(tier.Tier(stand), values)
    assert (stand.compiled, values[0]) == (0, 2.0)


def test_near_a_time_limit_python_runs_instead_of_waiting(asked, monkeypatch):
    monkeypatch.setattr(tier, "patience", 0.0)
    stand, values = Stand(doubled.py_func), np.ones(tier.ENTRIES + 1)
    kernel = tier.Tier(stand)
    for seconds, expected in ((20.0, 2.0), (0.0, 4.0)):  # and in a last step after the limit
        with controlled_by(Control.starting_now(seconds)):
            assert call(kernel, values) == expected
    assert (stand.compiled, len(asked)) == (0, 1)
    call(kernel, values)
    assert stand.compiled == 1


def test_compiled_code_takes_over_from_python(asked, monkeypatch):
    monkeypatch.setattr(tier, "patience", 0.0)
    stand, values = Stand(endless), np.full(3, 2.0)
    kernel = tier.Tier(stand)
    kernel._compile = lambda *arguments: lambda given: given.tolist()
    threading.Timer(0.05, setattr, (stand, "on_disk", True)).start()
    control = Control.starting_now(20.0)
    with controlled_by(control):
        assert call(kernel, values) == [2.0, 2.0, 2.0]
        assert not control.is_late


UNDER_A_PROFILER = """
import sys, time
from certimap.kernels import tier

def counted():
    return [abs(i) for i in range(3)]

for seconds in (9.0, 0.0):
    try:
        tier._within(seconds, lambda: False, time.sleep, (0.05,))
    except tier._Undone:
        pass
    sys.setprofile(lambda *event: None)
    print(counted())
    sys.setprofile(None)
"""


def test_a_profiler_works_after_a_run(tmp_path):
    assert program(UNDER_A_PROFILER, tmp_path, timeout=600) == "[0, 1, 2]\n" * 2


def test_a_last_step_waits_for_a_stuck_process_for_some_seconds_only(asked, monkeypatch):
    monkeypatch.setattr(tier, "patience", 0.0)
    monkeypatch.setattr(tier, "longest", 0.05)
    stand = Stand(doubled.py_func)
    with controlled_by(Control.starting_now(0.0)):
        call(tier.Tier(stand), np.ones(tier.MOST_ENTRIES + 1))
    assert stand.compiled == 1


def test_a_step_of_a_search_that_begins_after_the_limit_waits_for_nothing(asked, monkeypatch):
    monkeypatch.setattr(tier, "patience", 0.0)
    stand, control = Stand(doubled.py_func), Control.starting_now(0.0)
    control.searching = True
    with controlled_by(control), pytest.raises(TimeUp, match="compiling kernels"):
        call(tier.Tier(stand), np.ones(tier.MOST_ENTRIES + 1))
    assert stand.compiled == 0


class Shielded:
    """Ignores the first exception raised in its finalizer, as Python does."""

    def __del__(self):
        end = time.perf_counter() + 20.0
        while time.perf_counter() < end:
            pass


def busy_in_a_finalizer(values):
    Shielded()
    while values[0] > 1.0:
        values[1] += 1.0
    return values[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_ends_though_a_finalizer_swallows_its_exception(asked, monkeypatch):
    monkeypatch.setattr(tier, "patience", 0.03)
    kernel, values = tier.Tier(Stand(busy_in_a_finalizer)), np.array([2.0, 0.0])
    kernel._compile = lambda *arguments: lambda given: given.tolist()
    assert call(kernel, values) == [2.0, 0.0]


IN_A_FORK = """
import os, threading
import numpy as np
from certimap.kernels import background, hashing, plain, tier

def held_elsewhere(lock):
    ready, leave = threading.Event(), threading.Event()
    def hold():
        with lock:
            ready.set()
            leave.wait()
    threading.Thread(target=hold, daemon=True).start()
    ready.wait()
    return leave

tier._within(9.0, lambda: False, lambda: None, ())
tier._running[tier._Run(0, float("inf"), lambda: False)] = None
held_elsewhere(tier._lock)
for lock in (background._lock, plain.guard):
    threading.Timer(0.05, held_elsewhere(lock).set).start()
child = os.fork()
if child == 0:
    found = np.empty((2, 3))
    hashing.running_sums(np.zeros(3), 0.0, 0.0, *found)
    try:
        tier._within(0.05, lambda: False, lambda: next(iter(int, 1) and (0 for _ in iter(int, 1) if _)), ())
    except tier._Undone:
        os._exit(0 if found[0, 2] == 3.0 and not tier._running else 1)
    os._exit(2)
print(os.waitpid(child, 0)[1])
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_takes_no_locks_or_runs_with_it(tmp_path):
    assert program(IN_A_FORK, tmp_path, timeout=600) == "0\n"


def test_the_wait_ends_with_the_other_process(asked, monkeypatch):
    monkeypatch.setattr(background, "is_at_work", lambda: False)
    stand = Stand(doubled.py_func)
    with controlled_by(Control.starting_now(20.0)):
        call(tier.Tier(stand), np.ones(tier.MOST_ENTRIES + 1))
    assert stand.compiled == 1


def test_kernels_that_may_reorder_sums_are_never_python(asked):
    from certimap.learn.kernels import rows

    for kernel in (rows._squared_distance, rows.k_means, rows.k_means):
        with pytest.raises(NotPlain):
            plain(kernel.py_func)
    stand = Stand(rows._squared_distance.py_func)
    call(tier.Tier(stand), np.ones(2, np.float32), np.ones(2, np.float32))
    assert (stand.compiled, asked) == (1, [])
    stand = Stand(rows._squared_distance.py_func)
    with controlled_by(Control.starting_now(0.05)), pytest.raises(TimeUp, match="compiling kernels"):
        call(tier.Tier(stand), np.ones(2, np.float32), np.ones(2, np.float32))
    assert stand.compiled == 0


def test_exp_and_log_are_those_of_the_c_library():
    from certimap.kernels.hashing import running_sums

    x = np.random.default_rng(0).normal(size=200) * 10.0
    found = np.empty((2, 2, 200))
    running_sums(x, 0.0, 0.0, *found[0])
    run_plain(plain(running_sums.py_func), (x, 0.0, 0.0, *found[1]))
    assert found[0].tobytes() == found[1].tobytes()
    running_sums(np.array([1e3]), 0.0, 0.0, *found[0])
    run_plain(plain(running_sums.py_func), (np.array([1e3]), 0.0, 0.0, *found[1]))
    assert found[0, 0, 0] == found[1, 0, 0] == np.inf


def test_a_request_is_read_when_it_is_complete():
    content = b"".join(len(word).to_bytes(8, "little") + word for word in (b"first", b"second"))
    file = io.BytesIO(content[:-2])
    assert background._requests(file) == [b"first"]
    file.seek(0, 2)
    file.write(content[-2:])
    file.seek(13)
    assert background._requests(file) == [b"second"]


REQUEST = pickle.dumps(("certimap.kernels.hashing", "running_sums", "types"))


@pytest.fixture
def requested(monkeypatch, tmp_path):
    """The kernel of `REQUEST`, which is compiled at once."""
    stand = Stand(None)
    stand.cache_path = tmp_path
    stand.compile = lambda signature: (setattr(stand, "on_disk", True), stand._compile_for_args())
    monkeypatch.setattr(hashing, "running_sums", stand)
    return stand


def test_no_process_repeats_the_work_of_another(requested):
    assert background._serve_last(REQUEST)
    assert background._serve_last(REQUEST)
    assert requested.compiled == 1


@pytest.mark.skipif(background.fcntl is None, reason="no locks of files here")
def test_one_process_at_a_time_compiles_into_a_folder(requested, tmp_path):
    with background._lone(tmp_path) as is_alone:
        assert is_alone
        assert not background._serve_last(REQUEST)
    assert requested.compiled == 0
    assert background._serve_last(REQUEST)
    assert requested.compiled == 1


def test_runs_on_many_threads(asked):
    kernel, values = tier.Tier(Stand(doubled.py_func)), np.ones((8, 4))
    threads = [threading.Thread(target=call, args=(kernel, row)) for row in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (values == 2.0).all()


IN_THE_BACKGROUND = """
import time
import numpy as np
from certimap.kernels.hashing import running_sums
def run():
    found = np.empty((2, 3))
    running_sums(np.zeros(3), 0.0, 0.0, *found)
    return found.tolist(), len(running_sums.overloads)
asked = run()
while run()[1] == 0:
    time.sleep(0.1)
print(asked, run(), sum(running_sums.stats.cache_hits.values()))
"""


def program(code, folder, timeout=600, cwd=None):
    """Run a program that finds no compiled kernel."""
    command = [sys.executable, "-P", "-u", "-c", code]
    environment = {**os.environ, "NUMBA_CACHE_DIR": os.fspath(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_another_process_compiles_and_runs_nothing_of_the_current_folder(tmp_path):
    sums = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    (tmp_path / "numba.py").write_text("raise SystemExit")
    found = program(IN_THE_BACKGROUND, tmp_path / "compiled", timeout=600, cwd=tmp_path)
    assert found.split("\n")[0] == f"({sums}, 0) ({sums}, 1) 1"


def test_a_program_that_is_no_interpreter_starts_none(monkeypatch):
    monkeypatch.setattr(background, "_start", lambda: pytest.fail("started"))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not background.compile_soon(hashing.running_sums, ())
    monkeypatch.setattr(sys, "frozen", False)
    monkeypatch.setattr(sys, "executable", None)
    assert not background.compile_soon(hashing.running_sums, ())


UNDER_A_LIMIT = """
import json
from numba.core import event
import numpy as np, certimap as cm
from certimap.kernels import tier
tier.patience = 0.0  # every call comes to where it would be compiled

class Compilations(event.Listener):
    n = 0
    def on_start(self, event):
        self.n += 1
    def on_end(self, event):
        pass

compilations = Compilations()
event.register("numba:compile", compilations)
rng = np.random.default_rng(0)
edges = [(i, i + 1) for i in range(196) if (i + 1) % 14] + [(i, i + 14) for i in range(182)]
factors = [cm.Factor(edge, rng.gamma(1.0, size=(2, 2))) for edge in edges]
grid = cm.MarkovNetwork(cm.Domain.of_sizes([2] * 196), factors)
mixture = cm.GaussianMixture([0.3, 0.7], rng.normal(size=(2, 2)), np.array([np.eye(2), 2 * np.eye(2)]))
discrete = cm.BayesianNetwork.from_cpts({"d": [0, 1]}, {}, {"d": [0.4, 0.6]})
nodes = [cm.LinearGaussian("x", ["d"], [0.0, 2.0], (), [1.0, 0.5]), cm.LinearGaussian("y", ["x"], 1.0, [0.5], 1.0)]
linear = cm.LinearGaussianNetwork(nodes, discrete)
chain = cm.hidden_markov_model(*(rng.dirichlet(np.ones(3), size) for size in (None, 3, 3)), steps=10)
for model, evidence in ((grid, None), (mixture, None), (linear, {"y": 1.0}), (chain, {"symbol0": 1})):
    result = cm.map_query(model, None, evidence, rng=0, progress=False, time_limit=LIMIT)
    bounds = (result.log_joint, result.log_joint_upper_bound)
    print(json.dumps((*bounds, str(result.certificate.kind))))
print(compilations.n)
"""


def test_a_time_limit_includes_compilation(tmp_path):
    *cold, n_compiled = program(UNDER_A_LIMIT.replace("LIMIT", "2.0"), tmp_path / "none").splitlines()
    *warm, _ = program(UNDER_A_LIMIT.replace("LIMIT", "None"), numba.config.CACHE_DIR).splitlines()
    assert n_compiled == "0"
    for found, truth in zip(map(json.loads, cold), map(json.loads, warm), strict=True):
        assert found[0] <= truth[1] + 1e-9
        assert found[1] >= truth[0] - 1e-9
        if "exact" in found[2].lower():
            assert found[0] == pytest.approx(truth[0], abs=1e-8)


def test_the_notice_is_of_waits_alone(asked, capsys, monkeypatch):
    monkeypatch.setattr(notice, "_is_wanted", False)
    notice.announce_compilation.cache_clear()
    large = np.ones(tier.ENTRIES + 1)
    call(tier.Tier(Stand(doubled.py_func)), large)
    notice.announce_compilation()
    call(tier.Tier(Stand(doubled.py_func)), np.ones(1))
    call(tier.Tier(Stand(doubled.py_func, on_disk=True)), large)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        call(tier.Tier(Stand(doubled.py_func)), large)
        notice.announce_compilation()
    assert capsys.readouterr().err == "compiling kernels, once; they are kept on disk for later runs\n"

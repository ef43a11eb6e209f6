"""Signals, full disks, little memory: an answer or one sentence, and nothing half written."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import certimap as cm
from certimap.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and limits of Linux")

# Starts the command as its script does, after `before`; says when the search begins.
START = """
import sys
{before}
import certimap.solvers.driver as driver
search = driver._loop
def loop(*given):
    print("searching", file=sys.stderr, flush=True)
    return search(*given)
driver._loop = loop
from certimap.cli.__main__ import run
print("up", file=sys.stderr, flush=True)
sys.argv = ["certimap", *sys.argv[1:]]
sys.exit(run())
"""
ENDLESS = ["--solver", "pac", "--epsilon", "0", "--delta", "0", "--max-samples", "1000000000", "--json"]


def start(*arguments, before=""):
    command = [sys.executable, "-c", START.format(before=before), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sentences(err):
    """Return what was said beside the marks of this test and the notice that kernels are compiled."""
    lines = err.splitlines()
    return [line for line in lines if line not in ("up", "searching") and not line.startswith("compiling kernels")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_search_with_what_it_has_earned(examples, tmp_path, number):
    process = start("solve", examples / "alarm.bif", *ENDLESS, "-o", tmp_path / "r.json")
    for line in process.stderr:
        if line == "searching\n":
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, sentences(err)) == (0, [])
    answer = json.loads(out)
    assert answer["status"]["code"] == "interrupted"
    assert answer["certificate"]["kind"] == "none"
    assert json.loads((tmp_path / "r.json").read_text()) == answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_leaves_an_answer_or_a_sentence(examples, tmp_path, number):
    best = cm.map_query(cm.read(examples / "alarm.bif"), epsilon=0.0, delta=0.0)
    rng = random.Random(int(number))
    for k in range(4):
        path = tmp_path / f"{k}.json"
        process = start("solve", examples / "alarm.bif", *ENDLESS, "-o", path, "--time-limit", "20")
        assert process.stderr.readline() == "up\n"
        time.sleep(rng.random() ** 2 * 3.0)
        process.send_signal(number)
        out, err = process.communicate(timeout=600)
        if process.returncode == 0:
            answer = json.loads(out)
            assert json.loads(path.read_text()) == answer
            if answer["log_prob"] is None:  # ln p(e) was not known yet, or never
                assert answer["log_joint"] <= best.log_joint + 1e-9
            else:
                assert answer["log_prob"] <= best.log_prob + 1e-9
            assert answer["log_upper_bound"] >= best.log_prob - 1e-9
            assert sentences(err) == []
        else:
            assert process.returncode == 130
            assert (out, sentences(err)) == ("", ["certimap: interrupted before there was an answer"])
            assert not path.exists()
    assert [path.suffix for path in tmp_path.iterdir() if path.suffix != ".json"] == []


SWALLOWED = """
import signal, sys
import certimap.cli.__main__ as command
class Finalized:
    def __del__(self):
        signal.raise_signal(signal.{name})
        while True:  # until the signal is there
            pass
def main():
    Finalized()
    while True:
        pass
import certimap.cli.main
certimap.cli.main.main = main
sys.exit(command.run())
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_a_finalizer_is_neither_printed_nor_lost(name):
    """Python says 'Exception ignored in ...' there, and goes on as if nothing had been."""
    code = SWALLOWED.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "certimap: interrupted before there was an answer\n"


AT_IMPORT = """
import os, signal
def at(event, given):
    if event == "import" and given[0] == "numba.core.dispatcher" and not sent:
        sent.append(given[0])
        os.kill(os.getpid(), signal.SIGINT)
sent = []
sys.addaudithook(at)
"""


def test_a_signal_while_numba_is_imported_leaves_an_answer_or_a_sentence(examples):
    process = start("solve", examples / "alarm.bif", *ENDLESS, before=AT_IMPORT)
    _, err = process.communicate(timeout=600)
    assert process.returncode in (0, 130), err


def test_two_signals_end_it_at_once(examples):
    process = start("solve", examples / "alarm.bif", *ENDLESS)
    for line in process.stderr:
        if line == "searching\n":
            break
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode in (0, 130)
    assert "Traceback" not in err
    assert out == "" or json.loads(out)


def test_a_full_disk_is_one_sentence_and_the_old_file_stays(examples, tmp_path):
    path = tmp_path / "model.npz"
    cm.io.write(cm.read(examples / "asia.bif"), path)
    old = path.read_bytes()
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    process = start("convert", examples / "alarm.bif", path, before=small)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert sentences(err) == [f"certimap: {path}: File too large"]
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]


@pytest.mark.parametrize("options", [["--json"], [], ["-o", "/dev/full/r.json"]])
def test_what_cannot_be_printed_or_written_is_one_sentence(examples, options):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "certimap.cli", "solve", str(examples / "asia.bif"), *options]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 2
    (line,) = sentences(done.stderr)
    assert line.startswith("certimap: ")
    assert "No space left" in line or "/dev/full/r.json: Not a directory" in line


@pytest.mark.parametrize(
    "command", [["solve", "--proof"], ["sample", "-n", "1000", "-o"], ["convert"], ["solve", "-o"]]
)
def test_whatever_a_full_disk_cuts_is_named_and_not_there(examples, tmp_path, command):
    path = tmp_path / ("p.npz" if command[-1] in ("--proof", "convert") else "p.csv")
    other = tmp_path / f"{path.name}.part"
    other.write_text("somebody else's")
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    process = start(command[0], examples / "asia.bif", *command[1:], path, before=small)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert [line for line in sentences(err) if "kernels cannot be kept" not in line] == [
        f"certimap: {path}: File too large"
    ]
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_that_a_terminal_has_no_letters_for_are_escaped(examples, tmp_path, encoding):
    text = (examples / "asia.bif").read_text().replace("lung", "l\u5e03ng").replace("yes", "\u0142yes")
    (tmp_path / "m.bif").write_text(text, encoding="utf-8")
    for arguments in (["solve", "m.bif", "--proof", "p.npz"], ["check", "m.bif", "p.npz"], ["info", "m.bif"]):
        command = [sys.executable, "-m", "certimap.cli", *arguments]
        environ = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environ, timeout=600)
        assert done.returncode == 0, done.stderr
        assert b"l\\u5e03ng" in done.stdout or arguments[0] == "info"


def limited(n_bytes):
    return f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({n_bytes}, {n_bytes}))"


@pytest.fixture
def complete_graph(tmp_path):
    """27 binary variables, each with a factor with each: any elimination begins with a table of 2^27 entries."""
    pairs = list(itertools.combinations(range(27), 2))
    scopes = "\n".join(f"2 {i} {j}" for i, j in pairs)
    tables = "\n".join(["4 2 1 1 2"] * len(pairs))
    path = tmp_path / "complete.uai"
    path.write_text(f"MARKOV\n27\n{' '.join(['2'] * 27)}\n{len(pairs)}\n{scopes}\n{tables}\n")
    return path


def test_memory_that_does_not_suffice_is_one_sentence(complete_graph):
    arguments = ["solve", complete_graph, "-q", "0,1", "--solver", "set_elimination"]
    out, err = start(*arguments, before=limited(1150 * 2**20)).communicate(timeout=600)
    (line,) = sentences(err)
    assert out == ""
    assert "memory" in line


@pytest.mark.slow
def test_memory_that_runs_out_leaves_an_answer_and_its_bounds(complete_graph):
    """The user allowed more than there is: what could not be conditioned is bounded, and the page says why."""
    arguments = ["solve", complete_graph, "-q", "0,1", "--solver", "set_elimination", "--max-memory", "200G"]
    out, err = start(*arguments, before=limited(1150 * 2**20)).communicate(timeout=600)
    assert not sentences(err)
    assert "memory ran out in conditioning" in out
    assert "<= best <=" in out


def test_with_too_little_memory_to_start_it_says_so(examples):
    command = f"ulimit -v 400000; {sys.executable} -m certimap.cli solve {examples / 'asia.bif'}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ulimit -v" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_torn_record_of_a_benchmark_names_its_file(tmp_path, capsys, monkeypatch):
    import certimap_lab.bench.records as records

    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    opened = records.RecordFile.__init__

    def opened_full(self, path):
        opened(self, path)
        self._file.close()
        self._file = Full()

    monkeypatch.setattr(records.RecordFile, "__init__", opened_full)
    assert main(["bench", "truth", "--queries", "1", "--out", str(tmp_path), "--quiet"]) == 2
    assert capsys.readouterr().err == f"certimap: {tmp_path / 'truth.jsonl'}: No space left on device\n"


def test_sigterm_ends_a_benchmark_and_its_workers_where_ctrl_c_is_ignored(tmp_path):
    """As a script has it that starts the command in the background."""
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process = start("bench", "truth", "--jobs", "2", "--out", tmp_path / "run", before=deaf)
    for line in process.stderr:
        if " queries, " in line:
            break
    workers = children_of(process.pid)
    assert len(workers) >= 2
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.splitlines()[-1] == "certimap: ended by SIGTERM; what is on record stays"
    deadline = time.monotonic() + 600.0
    while any(not is_dead(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives the command"
        time.sleep(0.05)


def children_of(pid):
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_dead(pid):
    """Whether a process has ended, though nobody may have asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True

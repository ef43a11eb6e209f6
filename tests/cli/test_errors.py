"""What goes wrong in the shell is one sentence on standard error and exit code 2, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from certimap.cli.main import main


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Bad files of every kind."""
    (tmp_path / "broken.bif").write_text(
        "network x { }\nvariable A { type discrete [ 2 ] { a, b }; }\nprobability ( A ) {"
    )
    (tmp_path / "zero.uai").write_text("BAYES\n2\n2 2\n2\n1 0\n2 0 1\n2 1 0\n4 1 0 .2 .8\n")
    (tmp_path / "bad.csv").write_text("xray,asia\nyes\n")
    (tmp_path / "unknown.csv").write_text("xray\nmaybe\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "bad.evid").write_text("1 99 0\n")
    (tmp_path / "bad.txt").write_text("A\n")
    (tmp_path / "model.xyz").write_text("?")
    (tmp_path / "packed.bif.gz").write_text("not packed")
    grid = [f"2 {15 * i + j} {15 * i + j + 1}" for i in range(15) for j in range(14)]
    grid += [f"2 {15 * i + j} {15 * (i + 1) + j}" for i in range(14) for j in range(15)]
    tables = "\n".join(["4 2 1 1 2"] * len(grid))
    (tmp_path / "grid.uai").write_text(
        f"MARKOV\n225\n{' '.join(['2'] * 225)}\n{len(grid)}\n" + "\n".join(grid) + f"\n{tables}\n"
    )
    return tmp_path


CASES = {
    "unknown variable": (["asia.bif", "-q", "nobody"], ["'nobody'", "'asia'"]),
    "unknown evidence": (["asia.bif", "-e", "nobody=1"], ["'nobody'"]),
    "unknown state": (["asia.bif", "-q", "lung", "-e", "xray=maybe"], ["'maybe'", "'xray'", "'yes'"]),
    "no equals sign": (["asia.bif", "-e", "xray"], ["'xray'", "NAME=STATE"]),
    "open quote": (["asia.bif", "-q", '"lung'], ["quote"]),
    "two states": (["asia.bif", "-e", "xray=yes,xray=no"], ["'xray'", "'yes'", "'no'"]),
    "overlap": (["asia.bif", "-q", "lung", "-e", "lung=yes"], ["'lung'", "queried"]),
    "queried twice": (["asia.bif", "-q", "lung,lung"], ["'lung'", "twice"]),
    "impossible evidence": (["@zero.uai", "-q", "0", "-e", "1=1,0=1"], ["0"]),
    "impossible evidence, one": (["@zero.uai", "-q", "1", "-e", "0=1"], ["evidence"]),
    "missing model": (["@absent.bif"], ["absent.bif"]),
    "missing evidence file": (["asia.bif", "--evidence-file", "@absent.csv"], ["absent.csv"]),
    "malformed model": (["@broken.bif"], ["broken.bif:3"]),
    "unpacked archive": (["@packed.bif.gz"], ["packed.bif.gz"]),
    "unknown format": (["@model.xyz"], ["model.xyz", ".bif"]),
    "short row": (["asia.bif", "--evidence-file", "@bad.csv"], ["bad.csv:2", "where 2 are expected"]),
    "unknown state in a file": (["asia.bif", "--evidence-file", "@unknown.csv"], ["unknown.csv", "'maybe'"]),
    "malformed JSON": (["asia.bif", "--evidence-file", "@bad.json"], ["bad.json:1"]),
    "JSON of another kind": (["asia.bif", "--evidence-file", "@list.json"], ["list.json", "object"]),
    "evidence by a number out of range": (
        ["asia.bif", "--evidence-file", "@bad.evid"],
        ["bad.evid", "99", "0 to 7"],
    ),
    "evidence file of no known kind": (["asia.bif", "--evidence-file", "@model.xyz"], ["model.xyz", ".evid"]),
    "query file of no known kind": (["asia.bif", "--query-file", "@bad.txt"], ["bad.txt", ".query"]),
    "query twice over": (["asia.bif", "-q", "lung", "--query-file", "@list.json"], ["--query-file"]),
    "too large": (
        ["@grid.uai", "--max-edges", "1000", "-q", "0,224", "--solver", "max_product"],
        ["induced width"],
    ),
    "unknown solver": (["asia.bif", "--solver", "oracle"], ["'oracle'", "pac"]),
    "unknown setting": (["asia.bif", "--solver", "pac", "--set", "colour=red"], ["'colour'"]),
    "malformed setting": (["asia.bif", "--solver", "pac", "--set", "colour"], ["NAME=VALUE"]),
    "epsilon out of range": (["asia.bif", "--epsilon", "1.5"], ["1.5"]),
    "delta out of range": (["asia.bif", "--delta", "-1"], ["-1"]),
    "epsilon no number": (["asia.bif", "--epsilon", "small"], ["--epsilon"]),
    "negative seed": (["asia.bif", "--rng", "-3"], ["-3"]),
    "bytes": (["asia.bif", "--max-memory", "lots"], ["'lots'"]),
    "warm start": (["asia.bif", "--warm-start", "guess"], ["'guess'"]),
    "preset and solver": (["asia.bif", "--preset", "paper", "--solver", "pac"], ["--preset"]),
    "unknown option": (["asia.bif", "--nonsense"], ["--nonsense"]),
    "no model": ([], ["MODEL", "--help"]),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_and_exit_code_2(capsys, examples, files, case):
    arguments, expected = CASES[case]
    where = [
        str(files / a[1:]) if a.startswith("@") else str(examples / a) if a.endswith(".bif") else a
        for a in arguments
    ]
    code = main(["solve", *where])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("compiling kernels")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("certimap: ")
    for text in expected:
        assert text in lines[0]


def test_no_traceback_in_a_process_of_its_own(examples):
    done = subprocess.run(
        [sys.executable, "-m", "certimap.cli", "solve", str(examples / "asia.bif"), "-q", "nobody"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_command_names_the_help(capsys):
    assert main(["solv"]) == 2
    assert "'solv'" in capsys.readouterr().err

"""Small files of every format, which fuzzing mutates."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from certimap.core.domain import Domain

BIF = b"""network n { property "v 1"; }
variable A { type discrete [ 2 ] { lo, hi }; }
variable "B c" { type discrete [ 3 ] = { (0;1], "x, y", 1,999 }; property p = 1; }
probability ( A ) { table .3, .7; } // end
probability ( "B c" | A ) { (hi) .2, .8, 0; /* c */ default 1e-1 .4 .5; }
"""
UAI = b"BAYES\n3\n2 2 3\n3\n1 0\n2 0 1\n2 1 2\n\n2 .5 .5\n4 .1 .9 0 0\n6 .2 .3 .5 1e-400 1 0 # c\n"
MARKOV = b"c comment\nMARKOV 2 2 3 /* x */ 3 1 0 2 0 1 0\n2 1e400 .5\n6 1 2 3 4 5 6\n1 7\n"
SPN = b"# c\nindicator 0 0 0\nl 1 0 1\ngaussian 2 1 0.5 2\n+ 3 0 .25 1 .75\n* 4 3 2\n* 5 0 2\n+ 6 4 1e-320 5 3\n"
NET = b"""net { } % c
node A { states = ("lo" "hi"); position = (1 2); }
discrete node B { states = ("x" "y \\" z" w); label = "%"; }
potential (A) { data = (.3 .7); }
potential (B | A) { data = ((.1 .2 7e-1) (1 0 0)); }
"""
XDSL = b"""<?xml version="1.0"?>
<smile version="1.0" id="n"><nodes>
<cpt id="A"><state id="lo"/><state id="hi"/><probabilities>.3 .7</probabilities></cpt>
<deterministic id="B"><state id="x"/><state id="y"/><parents>A</parents>
<resultingstates>x y</resultingstates></deterministic>
<noisymax id="C"><state id="x"/><state id="y"/><parents>A B</parents><strengths>0 1 1 0</strengths>
<parameters>.2 .8 0 1 .5 .5 0 1 .1 .9</parameters></noisymax>
</nodes><extensions><genie app="aGrUM"/></extensions></smile>
"""
DYNAMIC = b"""<smile version="1.0" id="d"><nodes>
<cpt id="A" dynamic="anchor"><state id="lo"/><state id="hi"/><probabilities>.3 .7</probabilities></cpt>
<cpt id="X" dynamic="plate"><state id="x"/><state id="y"/><parents>A</parents>
<probabilities>.1 .9 .6 .4</probabilities></cpt><cpt id="T" dynamic="terminal"><state id="s"/>
<state id="t"/><parents>X</parents>
<probabilities>.2 .8 .5 .5</probabilities></cpt></nodes><dynamic numslices="3"><cpt id="X" order="1">
<parents>X</parents><probabilities>.8 .2 .3 .7</probabilities></cpt></dynamic></smile>
"""
XMLBIF = b"""<?xml version="1.0" encoding="utf-8"?><!DOCTYPE BIF [ <!ELEMENT BIF ( NETWORK )*> ]>
<BIF VERSION="0.3"><NETWORK><NAME>n</NAME>
<VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>lo</OUTCOME><OUTCOME>&lt;1</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>B</NAME><OUTCOME>x</OUTCOME><OUTCOME>y</OUTCOME></VARIABLE>
<DEFINITION><FOR>A</FOR><TABLE>.3 .7</TABLE></DEFINITION>
<DEFINITION><FOR>B</FOR><GIVEN>A</GIVEN><TABLE>.1 .9 <!-- c --> 2e-1 .8</TABLE></DEFINITION>
</NETWORK></BIF>
"""
PGMX = b"""<?xml version="1.0"?><ProbModelXML formatVersion="0.2.0"><ProbNet type="BayesianNetwork"><Variables>
<Variable name="A" type="finiteStates" role="chance"><States><State name="lo"/><State name="hi"/></States>
</Variable>
<Variable name="B" type="finiteStates" role="chance"><States><State name="x"/><State name="y"/></States></Variable>
<Variable name="C" type="finiteStates" role="chance"><States><State name="x"/><State name="y"/></States></Variable>
</Variables><Links/><Potentials><Potential type="Table"><Variables><Variable name="A"/></Variables>
<Values>.3 .7</Values></Potential><Potential type="ICIModel"><Variables><Variable name="B"/><Variable name="A"/>
</Variables><Model>OR / MAX</Model><Subpotentials><Potential type="Table"><Variables><Variable name="B"/>
<Variable name="A"/></Variables><Values>1 0 .2 .8</Values></Potential></Subpotentials></Potential>
<Potential type="Tree/ADD"><Variables><Variable name="C"/><Variable name="A"/><Variable name="B"/></Variables>
<TopVariable name="A"/><Branches><Branch><States><State name="lo"/></States><Potential type="Table"><Variables>
<Variable name="C"/></Variables><Values>.5 .5</Values></Potential></Branch><Branch><States>
<State name="hi"/></States>
<Potential type="Table"><Variables><Variable name="C"/><Variable name="B"/></Variables><Values>.1 .9 0 1</Values>
</Potential></Branch></Branches></Potential></Potentials></ProbNet></ProbModelXML>
"""
NET_ID = b"""net { limited_memory = "yes"; }
node A { states = ("lo" "hi"); } decision D { states = ("x" "y" "z"); }
utility U { } utility V { }
potential (A) { data = (.3 .7); }
potential (D | A) { }
potential (U | A D) { data = ((1 -2 3e5)(0 0 .5)); }
potential (V) { data = -1; }
"""
XDSL_ID = b"""<smile version="1.0" id="n"><nodes>
<cpt id="A"><state id="lo"/><state id="hi"/><probabilities>.3 .7</probabilities></cpt>
<decision id="D"><state id="x"/><state id="y"/><parents>A</parents></decision>
<utility id="U"><parents>A D</parents><utilities>1 -2 3 0</utilities></utility>
<utility id="V"><parents>D</parents><utilities>1e3 -.5</utilities></utility>
<mau id="S"><parents>U V</parents><weights>1 -2</weights></mau></nodes></smile>
"""
XMLBIF_ID = b"""<BIF VERSION="0.3"><NETWORK><PROPERTY>limited_memory</PROPERTY>
<VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>lo</OUTCOME><OUTCOME>hi</OUTCOME></VARIABLE>
<VARIABLE TYPE="decision"><NAME>D</NAME><OUTCOME>x</OUTCOME><OUTCOME>y</OUTCOME></VARIABLE>
<VARIABLE TYPE="utility"><NAME>U</NAME><OUTCOME>0</OUTCOME></VARIABLE>
<DEFINITION><FOR>A</FOR><TABLE>.3 .7</TABLE></DEFINITION><DEFINITION><FOR>D</FOR><GIVEN>A</GIVEN></DEFINITION>
<DEFINITION><FOR>U</FOR><GIVEN>A</GIVEN><GIVEN>D</GIVEN><TABLE>1 -2 3 0</TABLE></DEFINITION></NETWORK></BIF>
"""
PGMX_ID = b"""<ProbModelXML><ProbNet type="InfluenceDiagram"><Variables>
<Variable name="A" type="finiteStates" role="chance"><States><State name="lo"/><State name="hi"/></States>
</Variable>
<Variable name="D" type="finiteStates" role="decision"><States><State name="x"/><State name="y"/></States>
</Variable>
<Variable name="U" type="numeric" role="utility"/><Variable name="S" type="numeric" role="utility"/></Variables>
<Links><Link directed="true"><Variable name="A"/><Variable name="D"/></Link></Links><Potentials>
<Potential type="Sum" role="utility"><UtilityVariable name="S"/><Variables><Variable name="U"/></Variables>
</Potential><Potential type="Table"><Variables><Variable name="A"/></Variables><Values>.3 .7</Values></Potential>
<Potential type="Table" role="utility"><UtilityVariable name="U"/><Variables><Variable name="D"/>
<Variable name="A"/></Variables><Values>1 -2 3 0</Values></Potential></Potentials></ProbNet></ProbModelXML>
"""
DIAGRAM = {
    "uai": b"ID\n4\n2 2 2 3\n4\n1 0\n2 0 1\n2 0 2\n2 2 3\n\n2 .3 .7\n4 .1 .9 .5 .5\n4 1 -2 3 0\n6 1 2 3 4 5 -6\n",
    "id": b"4\nC C D D\n4\nP P U U\n",
    "pvo": b"4;\n4;\n0;\n3;\n2;\n1;\n",
}
XBN = b"""<ANALYSISNOTEBOOK><BNMODEL><VARIABLES><VAR NAME="A" TYPE="discrete"><STATENAME>lo</STATENAME>
<STATENAME>hi</STATENAME></VAR><VAR NAME="B"><STATENAME>x</STATENAME><STATENAME>y</STATENAME></VAR></VARIABLES>
<DISTRIBUTIONS><DIST TYPE="discrete"><PRIVATE NAME="A"/><DPIS><DPI>.3 .7</DPI></DPIS></DIST><DIST TYPE="discrete">
<CONDSET><CONDELEM NAME="A"/></CONDSET><PRIVATE NAME="B"/><DPIS><DPI INDEXES=" 0 ">.1 .9</DPI><DPI INDEXES=" 1 ">
.2 .8
</DPI></DPIS></DIST></DISTRIBUTIONS></BNMODEL></ANALYSISNOTEBOOK>
"""
HMM = b"""HMMER3/f [3.1b2]
LENG  1
HMM  A  C
     m->m m->i m->d i->m i->i d->m d->d
 COMPO .69315 .69315
  .69315 .69315
  .35667 1.60944 2.30259 .69315 .69315 0.0 *
 1 .22314 1.60944 1 a - - -
  .69315 .69315
  .10536 2.30259 * .10536 2.30259 0.0 *
//
"""
OPSA = b"""<opsa-mef><define-fault-tree name="F"><define-gate name="g"><or><gate name="h"/><not>
<basic-event name="a"/>
</not></or></define-gate><define-gate name="h"><atleast min="2"><basic-event name="a"/><basic-event name="b"/>
<event name="c"/></atleast></define-gate></define-fault-tree><model-data><define-basic-event name="a">
<float value=".1"/>
</define-basic-event><define-basic-event name="b"><parameter name="p"/></define-basic-event>
<define-house-event name="c">
<constant value="true"/></define-house-event><define-parameter name="p"><mul><float value=".5"/>
<float value=".3"/></mul>
</define-parameter></model-data></opsa-mef>
"""
POMDPX = b"""<pomdpx><Variable><StateVar vnamePrev="x0" vnameCurr="x1"><NumValues>2</NumValues></StateVar>
<ObsVar vname="o">
<ValueEnum>y n</ValueEnum></ObsVar><ActionVar vname="a"><ValueEnum>go</ValueEnum></ActionVar></Variable>
<InitialStateBelief><CondProb><Var>x0</Var><Parent>null</Parent><Parameter type="TBL"><Entry><Instance>-</Instance>
<ProbTable>uniform</ProbTable></Entry></Parameter></CondProb></InitialStateBelief><StateTransitionFunction>
<CondProb>
<Var>x1</Var><Parent>a x0</Parent><Parameter><Entry><Instance>* - -</Instance><ProbTable>identity</ProbTable>
</Entry>
</Parameter></CondProb></StateTransitionFunction><ObsFunction><CondProb><Var>o</Var><Parent>x1</Parent><Parameter>
<Entry><Instance>s0 -</Instance><ProbTable>.1 .9</ProbTable></Entry><Entry><Instance>s1 y</Instance><ProbTable>1
</ProbTable></Entry></Parameter></CondProb></ObsFunction></pomdpx>
"""
FG = b"2 # c\n\n1\n4\n2\n2\n0 .3\n1 1e-400\n\n2\n0 4\n3 2\n3\n0 1\n3 2.5\n5 .7\n"
WCSP = b"toy 3 3 4 100\n2 3 2\n-2 0 1 100 2\n0 0 12\n1 2 7\n2 2 1 0 1\n1 1 5\n1 0 3 0\n0 4 0\n"
SHARED = b"n 3 2 2 9 2 2 2 -2 0 1 0 2 0 0 9 1 1 9 2 1 2 0 -1"
CFN = b"""# c
{ problem: { name: toy, mustbe: "<99.5" }, "variables": {a: ["x", "y"], b: 3, c -2},
functions: { f: {scope: [a b], defaultcost: 99.5, costs: [x 0 1.25, y 2 .7]}, g {[c] [1 -2.5]}, h: {scope: [a c],
costs: "k"}, k: {"scope": [0 2], "costs": [1, 2, 3, 4]} } }
"""
DNE = b"""// ~->[DNET-1]->~
bnet N { whenchanged = 1; visual V { x = (1, 2); };
node A { kind = NATURE; discrete = TRUE; states = (lo, hi); parents = (); probs = (.3, .7); title = "a;"; };
node B { discrete = FALSE; levels = (0, 1, 2); parents = (A); probs = ((.1, .9), (.2, .8)); };
node C { chance = DETERMIN; numstates = 2; parents = (A); functable = (#0, 1); /* c */ }; };
"""
DSL = b"""net N { HEADER = { ID = N; };
node A { TYPE = CPT; PARENTS = (); DEFINITION = { NAMESTATES = (lo, hi); PROBABILITIES = (.3, .7); }; };
node B { TYPE = TRUTHTABLE; PARENTS = (A); DEFINITION = { NAMESTATES = (x, y); RESULTINGSTATES = (x, y); }; }; };
"""
DSC = b"""belief network "n"
node A { name: "A"; type: discrete[2] = { "lo", "hi" }; position: (1, 2); }
node B { type: discrete = { "x", "y" }; }
probability(A) { .3, .7; } // c
probability(B | A) { (1): .2, .8; default: .5, .5; }
"""
NNF = b"""c x
nnf 6 6 4
L 1
L 2
A 2 0 1
L -1
O 1 2 2 3
A 0
"""
D4 = b"o 1 0\nt 2 0\na 3 0\n1 2 1 2 0\n1 3 -1 3 0\n3 2 4 0\n3 2 0\nf 4 0\n"
SDD = b"c x\nsdd 7\nL 1 0 1\nL 2 2 2\nL 3 0 -1\nF 6\nT 7\nL 5 4 3\nD 8 1 3 1 7 3 5 2 6\n"
PSDD = b"c x\npsdd 5\nL 0 0 1\nL 1 0 -1\nT 2 2 2 -1.3\nL 3 2 -2\nD 4 1 2 0 2 -0.5 1 3 -9e-1\n"
JPC = b"""c x
jpc 9
L 0 0 1
L 1 0 -1
I 2 0 2 2
C 3 0 2 -0.6 -1.3 -inf
B 4 0 3 2 -1.2
G 5 0 4 0.5 2
P 6 0 4 0 2 4 5
P 7 0 4 1 3 4 5
S 8 0 2 6 -2.3 7 -0.1
"""
DEEPROB = b"""{"directed": true, "nodes": [{"class": "Sum", "scope": [0, 1], "weights": [0.3, 0.7], "id": 0},
{"class": "Product", "scope": [0, 1], "id": 1},
{"class": "Bernoulli", "scope": [0], "params": {"p": 0.2}, "id": 2},
{"class": "Categorical", "scope": [1], "params": {"categories": [0, 2], "probabilities": [0.4, 0.6]}, "id": 3},
{"class": "BinaryCLT", "scope": [0, 1], "params": {"root": 0, "tree": [-1, 0],
"params": [[[-0.7, -0.7], [-0.7, -0.7]], [[-1.2, -0.4], [-0.1, -Infinity]]]}, "id": 4}],
"links": [{"source": 1, "target": 0, "idx": 0}, {"source": 4, "target": 0, "idx": 1},
{"source": 2, "target": 1, "idx": 0}, {"source": 3, "target": 1, "idx": 1}]}"""
SPARC = b"""{"format": "gcw-circuit-v1", "backend": "numpy", "root": 6, "nodes": [
{"id": 0, "kind": "bernoulli", "children": [], "scope": [0], "p": 0.2},
{"id": 1, "kind": "literal", "children": [], "scope": [0], "value": 1},
{"id": 2, "kind": "indicator", "children": [], "scope": [1], "value": 1, "num_cats": 3},
{"id": 3, "kind": "discrete_logistic", "children": [], "scope": [1], "mu": 1.3, "s": 0.7, "num_cats": 3},
{"id": 4, "kind": "product", "children": [0, 2]}, {"id": 5, "kind": "product", "children": [1, 3]},
{"id": 6, "kind": "sum", "children": [4, 5], "params": [0.3, 0.7]}]}"""
LINEAR = b"""{"format": "linear-gaussian", "hidden": ["B"], "variables": [
{"name": "A", "states": ["lo", 1, 2], "table": [0.2, 0.3, 0.5]},
{"name": "B", "states": [true, ["x", 2]], "parents": ["A"], "table": [[0.1, 0.9], [1, 0], [2e-1, 0.8]]},
{"name": "X", "parents": ["A"], "intercept": [0, -1.5, 2], "sd": [1, 0.5, 1e-3]},
{"name": "Y", "parents": ["X", "B"], "intercept": 1, "coefficients": [[0.5], [-2]], "sd": 2}]}"""
LITERALS = b"1 .5\n-1 0.25\n3 1e-400\n-3 2\n"
CNF = b"c weights .5 .5 1 1\nc p weight 3 .5 0\nc p weight -3 .5 0\np cnf 3 1\n1 -2 0\n"
CSV = b'A,"B c",X\nlo,"x, y",1.0\n,?,1e0\nhi,na,nan\n'
JSON = b'[{"A": "lo", "B c": {"likelihood": [1, 2, 0.5]}, "X": [0, 1]}, {"A": ["lo", "hi"], "X": null}]'
EVID = b"2\n1 0 1\n2 0 0 1 2\n"
MAP = b"0 2\n1 1\n# c\n1\n\n"
QUERY = b"2 0 1 /* c */\n"

CASES = {
    "cas": b"// ~->[CASE-1]->~\nIDnum A X NumCases\n1 lo * 2\n2 hi 0.5 1\n",
    "dat": b"A,X\nlo,N/A\n<EMPTY>,1.5\n",
    "arff": b"% c\n@relation r\n@attribute A {lo, hi}\n@attribute 'X' real\n@data\nlo,?\n?,'1.5'\nhi,2\n",
}
FORMATS: dict[str, tuple[bytes, ...]] = {  # of each format of models that is text, by its suffix
    "bif": (BIF,),
    "uai": (UAI, MARKOV),
    "spn": (SPN,),
    "net": (NET, NET_ID),
    "xdsl": (XDSL, DYNAMIC, XDSL_ID),
    "xmlbif": (XMLBIF, XMLBIF_ID),
    "pgmx": (PGMX, PGMX_ID),
    "xbn": (XBN,),
    "hmm": (HMM,),
    "opsa": (OPSA,),
    "pomdpx": (POMDPX,),
    "fg": (FG,),
    "wcsp": (WCSP, SHARED),
    "cfn": (CFN,),
    "dne": (DNE,),
    "dsl": (DSL,),
    "dsc": (DSC,),
    "nnf": (NNF, D4),
    "sdd": (SDD,),
    "psdd": (PSDD,),
    "jpc": (JPC,),
}


def pyjuice_seeds() -> tuple[bytes, ...]:
    """Return a pickle as pyjuice writes it: leaves of two variables, their products, and a sum."""

    def leaves(scope: int, name: bytes, params: list[float]) -> dict[str, Any]:
        dist = b"\x80\x04\x8c\x07pyjuice\x8c" + bytes([len(name)]) + name + b"\x93)\x81}\x8c\x08num_catsK\x02sb."
        return {
            **size,
            "type": "Input",
            "chs": (),
            "scope": [scope],
            "dist": dist,
            "params": np.array(params, np.float32),
        }

    size = {"num_node_blocks": 1, "block_size": 2}
    nodes = [
        leaves(0, b"Categorical", [0.3, 0.7, 0.5, 0.5]),
        leaves(1, b"Bernoulli", [0.1, 0.9]),
        {**size, "type": "Product", "chs": (0, 1), "edge_ids": np.zeros((1, 2), np.int64)},
        {
            "num_node_blocks": 1,
            "block_size": 1,
            "type": "Sum",
            "chs": (2,),
            "edge_ids": np.zeros((2, 1), np.int64),
            "params": np.array([[[0.4, 0.6]]], np.float32),
        },
    ]
    return (pickle.dumps(nodes, 4),)


def native_seeds() -> tuple[bytes, ...]:
    """Return one native file for each kind of model."""
    from certimap.io.formats import read, write
    from certimap.learn.hidden_model import HiddenChowLiuModel

    with tempfile.TemporaryDirectory() as folder:
        models: list[Any] = []
        for suffix, text in (("bif", BIF.replace(b"1,999", b"z")), ("uai", MARKOV), ("spn", SPN)):
            path = Path(folder) / f"m.{suffix}"
            path.write_bytes(text)
            models.append(read(path))
        path = Path(folder) / "m.json"
        path.write_bytes(LINEAR)
        models.append(read(path))
        half = np.full((2, 2), 0.5)
        models.append(
            HiddenChowLiuModel(
                Domain.of_sizes([2, 2]),
                np.array([-1, 0]),
                np.array([0.5, 0.5]),
                np.stack([half, half]),
                [half, half],
            )
        )
        path = Path(folder) / "m.net"
        path.write_bytes(NET_ID)
        models.append(read(path))
        files: list[bytes] = []
        for model in models:
            path = Path(folder) / "m.npz"
            write(model, path)
            files.append(path.read_bytes())
    return tuple(files)

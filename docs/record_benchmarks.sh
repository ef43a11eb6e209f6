#!/bin/sh
# Record every benchmark of docs/benchmarks.md and its pages: sh docs/record_benchmarks.sh [DATA] [SECTION ...]
#
# DATA is the folder with twenty/, networks/, uai-mpe/, uai2014-mmap/ and decisions/ (default ../shared/data); without
# sections, all are recorded, in the order below. Nothing else should run meanwhile. All take some five hours on two
# cores, a third of it 'reproduction'. Stopped runs go on where they were; runs/ keeps the records.
#
# CERTIMAP is the command (default .venv/bin/certimap; "PYTHON -m certimap.cli" is another), with the package in lab/
# installed beside it (make test does so). Of the peers in PEERS (default
# pgmpy,pyagrum,pygms,toulbar2) those count that its environment has. NETWORKS is a folder with public networks as
# .bif.gz (pgmpy ships 24 in pgmpy/utils/example_models); without it 'seeded' is left out, and 'mpe' asks fewer.
set -eu
cd "$(dirname "$0")/.."
data=${1:-../shared/data}
[ $# -gt 0 ] && shift
certimap=${CERTIMAP:-.venv/bin/certimap}
peers=${PEERS:-pgmpy,pyagrum,pygms,toulbar2}
trees=accidents,adult,baudio,bnetflix,connect4,dna,jester,kdd,kosarek,msnbc,mushrooms,nltcs,ocr_letters,plants,pumsb_star,tretail
buckets=wmb:i_bound=5:iterations=1000,wmb:i_bound=10:iterations=1000,wmb:i_bound=15:iterations=1000,wmb:i_bound=18:iterations=1000

all="engine start learnspn rows hclt auto exact chow-liu networks peers mpe uai-mmap gaps seeded parity plain orders
    portfolio growth scale digits reach continuous impute mixed-tables heuristics theory proofs truth loosened hostile
    decisions samplers warm reproduction"

page_of() { # SECTION
    case $1 in
    engine | start) echo benchmarks/start ;;
    learnspn | rows) echo benchmarks/circuits ;;
    hclt) echo benchmarks/hidden-trees ;;
    auto | exact) echo benchmarks/circuit-proofs ;;
    chow-liu) echo benchmarks/chow-liu-trees ;;
    networks | peers | plain) echo benchmarks/networks ;;
    growth | scale) echo benchmarks/scale ;;
    digits | reach) echo benchmarks/reach ;;
    samplers | warm) echo reproduction ;;
    *) echo benchmarks/wide-networks ;;
    esac
    # continuous to decisions are sections of other pages, which their commands name
}

twenty() { # SECTION OPTION ...
    section=$1
    shift
    $certimap bench twenty --data "$data/twenty" --models runs/models --out "runs/$section" "$@"
}

tables() { # SECTION
    $certimap bench tables "runs/$1" --out "docs/benchmarks/$1" --formats png --into "$page" --section "$1" --no-print
}

for section in ${*:-$all}; do
    echo "== $section"
    page=docs/$(page_of "$section").md
    case $section in
    engine)
        $certimap bench engine --workers 2 --into "$page"
        continue
        ;;
    start)
        $certimap bench start --into "$page"
        continue
        ;;
    learnspn)
        twenty learnspn --circuits learnspn --time-limit 10 --jobs 2 \
            --solvers independent,max_product,argmax_product,frontier,auto
        ;;
    rows)
        twenty rows --circuits learnspn,learnspn-large --evidence rows --splits 20/80,50/50 --queries 2 --time-limit 60 --jobs 2 \
            --solvers independent,max_product,argmax_product,frontier,auto
        ;;
    samplers)
        twenty samplers --circuits learnspn --queries 2 --time-limit 10 --jobs 2 \
            --solvers independent,max_product,argmax_product,pac,smooth_pac,auto
        ;;
    warm)
        twenty warm --circuits learnspn --splits 25/75 --queries 20 --time-limit 0 --jobs 2 \
            --solvers argmax_product,smooth_pac+argmax_product,auto
        twenty warm --circuits learnspn --splits 50/50 --time-limit 0 --jobs 2 \
            --datasets baudio,ocr_letters,msweb --solvers budget
        ;;
    hclt)
        twenty hclt --circuits hclt16 --queries 2 --time-limit 10 --jobs 2 \
            --solvers independent,max_product,argmax_product,set_elimination,auto
        ;;
    auto)
        twenty auto --circuits learnspn,hclt16,hclt64 --solvers auto --delta 0 --time-limit 60 --workers 2
        ;;
    exact)
        twenty exact --circuits learnspn,hclt16,hclt64 --solvers auto --epsilon 0 --delta 0 --time-limit 60 --workers 2
        ;;
    chow-liu)
        twenty chow-liu --circuits chow-liu --datasets "$trees" --splits 10/90,20/80 --time-limit 10 \
            --solvers aobb,aobf,ijgp,wmb,pac,smooth_pac,frontier,auto
        ;;
    networks)
        $certimap bench networks --cases "$data/networks/cases.json" --out runs/networks --solvers auto --time-limit 60
        ;;
    peers)
        $certimap bench networks --cases "$data/networks/cases.json" --out runs/peers --solvers auto --peers "$peers" \
            --only asia,child,alarm,insurance,hepar2 --epsilon 0 --delta 0 --time-limit 3 --max-memory 8192
        ;;
    mpe)
        $certimap bench uai --dir "$data/uai-mpe" --dir "$data/uai2014-mmap" --networks "${NETWORKS:-$data/networks}" \
            --mpe --out runs/mpe --peers toulbar2 --time-limit 20
        ;;
    uai-mmap)
        $certimap bench uai --dir "$data/uai2014-mmap" --out runs/uai-mmap --time-limit 60
        ;;
    gaps)
        $certimap bench uai --dir "$data/uai-mpe" --out runs/gaps --solvers "$buckets,auto" --time-limit 10 \
            --only 2014_Grids_15,2014_Grids_17,2014_linkage_18
        $certimap bench uai --dir "$data/uai2014-mmap" --out runs/gaps --solvers "$buckets,auto" --time-limit 10 \
            --only ImageAlignment_13
        ;;
    seeded)
        if [ -z "${NETWORKS:-}" ]; then
            echo "left out: NETWORKS names no folder" >&2
            continue
        fi
        $certimap bench networks --seeded "$NETWORKS" --only link,diabetes,pigs,barley,munin --out runs/seeded \
            --epsilon 0 --delta 0 --time-limit 15 --max-memory 8192 --workers 2
        ;;
    parity)
        $certimap bench networks --parity 48,96 --out runs/parity --epsilon 0 --delta 0 --time-limit 20 --max-memory 8192
        ;;
    reproduction)
        if [ ! -d runs/reproduction ]; then # hours of trials: the records so far lie beside the pages
            mkdir -p runs/reproduction
            cp docs/reproduction/*.json runs/reproduction
            gzip -dc docs/reproduction/trials.jsonl.gz > runs/reproduction/trials.jsonl
        fi
        twenty reproduction --circuits learnspn --time-limit 0 --max-samples 2500000 --jobs 2 \
            --solvers independent,paper_max_product,max_product,argmax_product,hybrid_bp,paper_pac,paper,auto
        twenty reproduction --circuits learnspn --splits 20/80,50/50 --queries 5 --time-limit 0 --max-samples 2500000 \
            --jobs 2 --solvers itself
        $certimap bench reproduction runs/reproduction --into docs/reproduction.md
        gzip -9nc runs/reproduction/trials.jsonl > docs/reproduction/trials.jsonl.gz
        cp runs/reproduction/run.json runs/reproduction/circuits.json docs/reproduction
        continue
        ;;
    scale)
        $certimap bench scale --into "$page"
        continue
        ;;
    plain)
        $certimap bench networks --plain --cases "$data/networks/cases.json" --cases "$data/uai-mpe/cases.json" \
            ${NETWORKS:+--seeded "$NETWORKS"} --into "$page"
        continue
        ;;
    orders)
        $certimap bench orders ${NETWORKS:+"$NETWORKS"} "$data/networks" "$data/uai-mpe" "$data/uai2014-mmap" \
            --into "$page"
        continue
        ;;
    portfolio)
        # it exits with 1 where a part does better
        $certimap bench portfolio ${NETWORKS:+--networks "$NETWORKS"} --uai "$data/uai2014-mmap" --most 3 --jobs 2 --limits 2,10 \
            --into "$page" || [ $? = 1 ]
        continue
        ;;
    growth)
        $certimap bench networks --growth --into "$page"
        continue
        ;;
    digits)
        $certimap bench digits --into "$page"
        continue
        ;;
    reach)
        $certimap bench reach --models 4 --limit 60 --into "$page"
        continue
        ;;
    continuous)
        $certimap bench continuous --models 3 --time-limit 240 --into docs/densities.md
        continue
        ;;
    impute)
        $certimap bench impute --data "$data/twenty" --into docs/imputation.md
        continue
        ;;
    mixed-tables)
        $certimap bench mixed-tables --filled 15 --into docs/learning.md
        continue
        ;;
    heuristics)
        $certimap bench heuristics --models runs/models --into docs/how-to-choose-a-solver.md
        continue
        ;;
    theory)
        $certimap bench theory --into docs/theory.md
        continue
        ;;
    proofs)
        $certimap bench proofs --models 0 --learned runs/models --networks "$data/networks" --networks "$data/uai-mpe" \
            --out runs/proofs --into docs/proofs.md
        continue
        ;;
    truth)
        $certimap bench truth --queries 100000 --seed 0 --out runs/truth --into docs/truth-at-volume.md
        continue
        ;;
    loosened)
        $certimap bench truth --loosen all --queries 40000 --seed 0 --out runs/loosened --into docs/truth-at-volume.md
        continue
        ;;
    decisions)
        $certimap bench decisions --dir "$data/decisions" --into docs/decisions-under-uncertainty.md
        continue
        ;;
    hostile)
        $certimap bench hostile --models 20000 --seed 7000 --into docs/truth-at-volume.md
        continue
        ;;
    *)
        echo "unknown section: $section" >&2
        exit 2
        ;;
    esac
    tables "$section"
done
$certimap bench summary docs/benchmarks.md

#!/bin/sh
# Record every benchmark of docs/benchmarks.md: sh docs/record_benchmarks.sh [DATA] [SECTION ...]
#
# DATA is the folder with twenty/ and networks/ (default ../shared/data); without sections, all are recorded:
# engine learnspn warm hclt auto exact networks growth. Stopped runs go on where they were; runs/ keeps the records.
set -eu
cd "$(dirname "$0")/.."
data=${1:-../shared/data}
[ $# -gt 0 ] && shift
certimap=${CERTIMAP:-.venv/bin/certimap}
page=docs/benchmarks.md

twenty() { # SECTION OPTION ...
    section=$1
    shift
    "$certimap" bench twenty --data "$data/twenty" --models runs/models --out "runs/$section" "$@"
}

tables() { # SECTION
    "$certimap" bench tables "runs/$1" --out "docs/benchmarks/$1" --formats png --into "$page" --section "$1" --no-print
}

for section in ${*:-engine learnspn warm hclt auto exact networks growth}; do
    echo "== $section"
    case $section in
    engine)
        "$certimap" bench engine --workers 2 --into "$page"
        continue
        ;;
    learnspn)
        twenty learnspn --circuits learnspn --time-limit 10 --jobs 2 \
            --solvers independent,max_product,argmax_product,pac,smooth_pac,frontier,auto
        ;;
    warm)
        twenty warm --circuits learnspn --splits 25/75 --time-limit 10 --jobs 2 \
            --solvers argmax_product,smooth_pac,smooth_pac+argmax_product,auto
        twenty warm --circuits learnspn --splits 50/50 --time-limit 10 --jobs 2 \
            --datasets baudio,ocr_letters,msweb --solvers budget
        ;;
    hclt)
        twenty hclt --circuits hclt16 --queries 2 --time-limit 10 --jobs 2 \
            --solvers independent,max_product,argmax_product,pac,smooth_pac,set_elimination,auto
        ;;
    auto)
        twenty auto --circuits learnspn,hclt16,hclt64 --solvers auto --delta 0 --time-limit 60 --workers 2
        ;;
    exact)
        twenty exact --circuits learnspn,hclt16,hclt64 --solvers auto --epsilon 0 --delta 0 --time-limit 60 --workers 2
        ;;
    networks)
        "$certimap" bench networks --data "$data/networks" --out runs/networks --solvers auto --time-limit 60
        ;;
    growth)
        "$certimap" bench networks --growth --into "$page"
        continue
        ;;
    *)
        echo "unknown section: $section" >&2
        exit 2
        ;;
    esac
    tables "$section"
done

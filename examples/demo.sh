#!/bin/sh
# Two questions to two classic networks, answered with their certificates.
set -eu
cd "$(dirname "$0")"

ask() {
    echo
    echo "\$ certimap $*"
    certimap "$@"
}

echo "Marginal MAP: the two most telling facts about a patient whose monitor shows a high heart rate,"
echo "the other 34 variables summed out."
ask solve alarm.bif --query HISTORY,CVP --evidence HRBP=HIGH --epsilon 0.01 --delta 0.01 --rng 0

echo
echo "MPE: the most probable state of everything in the chest clinic, given a positive X-ray and no visit to Asia."
ask solve asia.bif --evidence xray=yes,asia=no --epsilon 0 --rng 0

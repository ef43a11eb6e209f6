"""Lets `python -m certimap.cli` stand for the command `certimap`."""

import sys

from certimap.cli.main import main

sys.exit(main())

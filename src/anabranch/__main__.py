"""`python -m anabranch`: the `anabranch` command."""

from __future__ import annotations

import sys

from anabranch.cli.main import main

sys.exit(main())

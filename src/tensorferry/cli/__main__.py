"""`python -m tensorferry.cli` is `ferry`."""

import sys

from tensorferry.cli import main

sys.exit(main())

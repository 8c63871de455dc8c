"""``python -m fuseproof``: the same program as the ``fuseproof`` script."""

import sys

from fuseproof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

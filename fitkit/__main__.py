"""`fitkit` or `python -m fitkit`: serve the planner's page on this machine and open the browser."""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Start Voilà on the page; arguments are Voilà's own (--port=8866, --no-browser, --Voila.ip=0.0.0.0)."""
    try:
        from voila.app import Voila
    except ImportError:
        sys.exit("The page needs Voilà and the widgets: pip install 'fitkit-llm[app]'.")
    notebook, config = _page()
    asked = sys.argv[1:] if arguments is None else arguments
    Voila.launch_instance([str(notebook), f"--Voila.config_file_paths={config}", *asked])


def _page() -> tuple[Path, Path]:
    """The notebook and the folder of voila.json: beside the views in a wheel, in the checkout otherwise."""
    here = Path(__file__).parent
    packed = here / "views" / "page"
    if packed.exists():
        return packed / "dashboard.ipynb", packed
    notebooks = here.parent / "notebooks"
    return notebooks / "dashboard.ipynb", notebooks


if __name__ == "__main__":
    main()

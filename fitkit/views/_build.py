"""Build hook: bundle the page's scripts with Vega, Vega-Lite and vega-embed, so that charts need no network at run time."""

import compileall
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("live.js", "bridge.js", "controls.js", "page.js")
PACKED = {
    "notebooks/dashboard.ipynb": "fitkit/views/page/dashboard.ipynb",
    "notebooks/voila.json": "fitkit/views/page/voila.json",
}


class BundleVega(BuildHookInterface):
    """Writes views/static/live.js before a wheel or an editable install is made; a wheel carries the page's notebook too."""

    def initialize(self, version: str, build_data: dict) -> None:
        import vl_convert as vlc

        root = Path(self.root)
        here = root / "fitkit" / "views"
        out = here / "static" / "live.js"
        out.parent.mkdir(exist_ok=True)
        script = "\n".join((here / part).read_text(encoding="utf-8") for part in PARTS)
        out.write_text(vlc.javascript_bundle(script, vl_version="6.4"), encoding="utf-8")
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"] |= {str(root / source): target for source, target in PACKED.items()}
        if version == "editable":
            # pip compiles what a wheel brings but no checkout; where Python may write no bytecode, every start would compile.
            compileall.compile_dir(root / "fitkit", quiet=1)

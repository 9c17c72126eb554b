"""Build hook: bundle live.js with Vega, Vega-Lite and vega-embed, so that charts need no network at run time."""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BundleVega(BuildHookInterface):
    """Writes views/static/live.js before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict) -> None:
        import vl_convert as vlc

        here = Path(self.root) / "fitkit" / "views"
        out = here / "static" / "live.js"
        out.parent.mkdir(exist_ok=True)
        out.write_text(vlc.javascript_bundle((here / "live.js").read_text(), vl_version="6.4"))

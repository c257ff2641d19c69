"""Compile the core: one source, one library per instruction set; Python loads the widest that the processor grants.

The build backend runs this for wheels and for editable installs; an editable install runs it again where sources are
newer than the libraries. Without a compiler the installation succeeds, and hrf works without its core.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # by hand
    BuildHookInterface = object

CORE = Path(__file__).parent / "src" / "hrf" / "_core"
# No -ffast-math: it would remove the rounding of exp2. Fused multiply-adds are safe.
OPTIONS = (
    "-std=c++17 -O3 -DNDEBUG -shared -fPIC -pthread -fvisibility=hidden -ffp-contract=fast -fno-math-errno "
    "-Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized -Wno-psabi"
)
AVX2 = "-mavx2 -mfma"
INSTRUCTIONS = {"baseline": ""}
if platform.machine() in ("x86_64", "AMD64"):
    wide = "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mprefer-vector-width=512"
    INSTRUCTIONS |= {"avx2": AVX2, "avx512": f"{AVX2} {wide}"}


def compile_core(folder: Path = CORE, more: str = "") -> list[Path]:
    """Compile all libraries into a folder, unless they are newer than the source; return those that are there.

    Args:
        folder: where the libraries go.
        more: options for the compiler, such as sanitizers.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    newest = max(path.stat().st_mtime for path in (*CORE.glob("*.h"), CORE / "core.cpp", Path(__file__)))
    libraries = {folder / f"core.{name}.so": options for name, options in INSTRUCTIONS.items()}
    running = {}
    for library, options in libraries.items():
        if compiler and not (library.exists() and library.stat().st_mtime >= newest):
            if not running:
                print("hrf: compiling the core, about half a minute", file=sys.stderr)
            # Another process may load or compile the same library meanwhile.
            part = library.with_suffix(f".{os.getpid()}.part")
            words = [*compiler.split(), *OPTIONS.split(), *options.split(), *more.split()]
            process = subprocess.Popen([*words, str(CORE / "core.cpp"), "-o", str(part)])
            running[library] = part, process
    for library, (part, process) in running.items():
        if process.wait() == 0:
            part.replace(library)
        else:
            part.unlink(missing_ok=True)
            library.unlink(missing_ok=True)
    found = [library for library in libraries if library.exists()]
    if len(found) < len(libraries):
        reason = "no C++ compiler was found" if compiler is None else f"{compiler} failed"
        print(
            f"hrf: {reason}; {len(found)} of {len(libraries)} libraries of the core are there",
            file=sys.stderr,
        )
    return found


class CustomBuildHook(BuildHookInterface):
    """Hatchling's hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel with the core is for this platform and any version of Python."""
        if compile_core():
            build_data["artifacts"].append("src/hrf/_core/*.so")
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    compile_core()

"""The compiled modules; everything else about the package is in pyproject.toml.

Each .c file of kstore/c is compiled once. Those with state are part of one module: the pool of blocks and the crew of
threads of `kstore.columns._native`, the codecs' contexts of `kstore.codec._compression`. The others are a static
library, from which each module takes what it calls.

KSTORE_CODECS says from where `kstore.codec._compression` takes liblz4 and libzstd. "auto", the default, links those
that pkg-config finds; "system" links both or fails, "none" neither. Any other value is a directory with the libraries'
sources, `lz4` and `zstd` with the files of CODECS and their headers, which are compiled into the module. The package
cramjam does the work of a library that is missing.

KSTORE_CHECKED, which the Makefile sets, asks for a checked build: "sanitize" with Cython's bounds checks and the
compiler's address and undefined-behaviour checks, "tsan" with its checks for data races, "coverage" (by clang) with
what a coverage-guided fuzzer needs. Each keeps its generated C in a directory of its own: no two builds share a file.

A free-threaded Python switches the GIL on again when it imports these modules, because they do not declare that they
can do without it: the GIL keeps two appends to one log apart.
"""

import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = {
    "sanitize": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "tsan": ["-fsanitize=thread"],
    "coverage": ["-fsanitize=fuzzer-no-link,address", "-shared-libasan"],
}
CHECKED = os.environ.get("KSTORE_CHECKED")

if CHECKED:
    build_dir, link_args = f"build/{CHECKED}/c", FLAGS[CHECKED]
    # gcc optimizes what the address sanitizer adds for longer than the tests then save.
    compile_args = ["-O0" if CHECKED == "sanitize" else "-O1", "-g1", "-fno-omit-frame-pointer", *link_args]
else:
    build_dir, compile_args, link_args = None, ["-O3", "-g1"], []
compile_args += ["-Wall", "-Wno-unused-function", "-fvisibility=hidden"]

STATELESS = [
    "kstore/c/cleaned.c",
    "kstore/c/columns/encode.c",
    "kstore/c/columns/gather.c",
    "kstore/c/columns/latest.c",
    "kstore/c/crc32.c",
    "kstore/c/crc32c.c",
    "kstore/c/keyhash.c",
    "kstore/c/keymap.c",
    "kstore/c/newest.c",
    "kstore/c/transactions.c",
    "kstore/c/window.c",
]
WITH_STATE = {
    "kstore.codec._compression": ["kstore/c/compress.c", "kstore/c/unpack.c"],
    "kstore.columns._native": sorted({*map(str, Path("kstore/c/columns").glob("*.c"))} - {*STATELESS}),
}
CODECS = {"lz4": ["lz4.c", "lz4hc.c", "lz4frame.c", "xxhash.c"], "zstd": ["zstd.c"]}
HEADERS = [str(path) for path in sorted(Path("kstore/c").rglob("*.h"))]


def pkg_config(library):
    """The compiler's and the linker's arguments for a library; None where there is none."""
    try:
        found = [
            subprocess.run(["pkg-config", kind, library], capture_output=True, text=True, check=True).stdout
            for kind in ("--cflags", "--libs")
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return [shlex.split(arguments) for arguments in found]


def codecs():
    """What KSTORE_CODECS adds to the sources, to the compiler's arguments and to the linker's."""
    wanted = os.environ.get("KSTORE_CODECS") or "auto"
    sources, compiled, linked = [], [], []
    for name, files in CODECS.items():
        if wanted == "none":
            continue
        if wanted not in ("auto", "system"):
            folder = Path(wanted, name).absolute()
            sources += [str(folder / file) for file in files]
            compiled += [f"-I{folder}", *HIDDEN]
        elif found := pkg_config(f"lib{name}"):
            compiled += found[0]
            linked += found[1]
        elif wanted == "system":
            raise SystemExit(f"KSTORE_CODECS=system: pkg-config finds no lib{name}")
        else:
            continue
        compiled.append(f"-DKS_HAVE_{name.upper()}")
    return sources, compiled, linked


# What marks the libraries' functions as visible to other libraries is left empty: another copy may be in the process.
HIDDEN = [
    "-DLZ4LIB_VISIBILITY=",
    "-DLZ4FLIB_VISIBILITY=",
    "-DZSTDLIB_VISIBLE=",
    "-DZSTDERRORLIB_VISIBLE=",
    "-DZDICTLIB_VISIBLE=",
]


class BuildExtensions(build_ext):
    """Builds the static library first, also where only the extensions were asked for."""

    def run(self):
        self.run_command("build_clib")
        super().run()


class BuildWheel(bdist_wheel):
    """Adds what packaging/fetch_codecs.py says of the C libraries in the wheel: their licences, and an SBOM."""

    def egg2dist(self, egginfo_path, distinfo_path):
        super().egg2dist(egginfo_path, distinfo_path)
        sources = os.environ.get("KSTORE_CODECS")
        if sources and Path(sources, "dist-info").is_dir():
            shutil.copytree(Path(sources, "dist-info"), distinfo_path, dirs_exist_ok=True)


def readme():
    """Return README.md with absolute addresses in place of paths, which mean nothing on the page of an index."""
    repository = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]

    def absolute(link):
        view = "raw" if link[2].endswith((".svg", ".png")) else "blob"
        return f"{link[1]}{repository}/{view}/main/{link[2]}"

    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r'(\]\(|src(?:set)?=")(?![a-z]+:|#)([^)"\s]+)', absolute, text)


def extension(source):
    name = ".".join(source.with_suffix("").parts)
    sources, compiled, linked = codecs() if name == "kstore.codec._compression" else ([], [], [])
    return Extension(
        name,
        [str(source), *WITH_STATE.get(name, []), *sources],
        depends=[*map(str, Path("kstore").rglob("*.pxd")), *HEADERS, *STATELESS],
        include_dirs=["kstore/c"],
        extra_compile_args=[*compile_args, *compiled],
        extra_link_args=[*link_args, *linked],
    )


# Cython translates in processes. Those of other kinds, which Python 3.14 prefers, would begin with this file.
multiprocessing.set_start_method("fork", force=True)

setup(
    packages=[*find_packages(include=["kstore", "kstore.*"]), "pyspark_kstore", "pytest_kstore"],
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"bdist_wheel": BuildWheel, "build_ext": BuildExtensions},
    options={"build_ext": {"parallel": os.cpu_count()}},
    libraries=[
        (
            "kstore_c",
            {"sources": STATELESS, "obj_deps": {"": HEADERS}, "include_dirs": ["kstore/c"], "cflags": compile_args},
        )
    ],
    ext_modules=cythonize(
        [extension(source) for source in sorted(Path("kstore").rglob("*.pyx"))],
        build_dir=build_dir,
        compiler_directives={
            "language_level": "3",
            "boundscheck": CHECKED == "sanitize",
            "wraparound": False,
            "initializedcheck": CHECKED == "sanitize",
            "embedsignature": True,
            "embedsignature.format": "clinic",
            "binding": False,
            "annotation_typing": False,  # annotations are for docs/make_stubs.py
        },
        force=CHECKED is not None,
        nthreads=2,
    ),
)

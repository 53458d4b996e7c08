"""Building: the CUDA libraries that one build of torch asks for, made of our own C sources.

The names come from torch's own libraries: every undefined symbol whose library is one of CUDA's
becomes a function. Those with a body in `sources/` keep it; the others return 0 and say so once.
What was built is kept by the identity of sources and torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from perfmodel.base.errors import EmulationError
from perfmodel.base.writing import draft_folder_of

_SOURCES = Path(__file__).with_name("sources")
_CORE = "libperfmodelcore.so"
_LIBRARIES = {
    "libcudart": ("runtime.c", ""),
    "libcuda": ("driver.c", r"cu(?!File)[A-Z]"),
    "libcublas": ("blas.c", ""),
    "libcublasLt": ("blas.c", ""),
    "libcudnn": ("dnn.c", ""),
    "libnccl": ("nccl.c", r"p?nccl[A-Z]"),
    "libcupti": ("", r"cupti[A-Z]"),
    "libnvrtc": ("nvrtc.c", ""),
    "libcufft": ("", ""),
    "libcurand": ("", ""),
    "libcufile": ("", "cuFile"),
    "libcusolver": ("", ""),
    "libcusparse": ("sparse.c", ""),
    "libcusparseLt": ("", "cusparseLt"),
    "libnvshmem_host": ("", "nvshmem"),
    "libnvJitLink": ("", ""),
    "libnvidia-ml": ("ml.c", "nvml[A-Z]"),
}
"""Our source of each library, and how its symbols begin if they name no library."""
_ALWAYS = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that are looked for by name while torch runs."""
_UNDEFINED = re.compile(r"\*UND\*\s+\S+\s+(?:\((?P<version>[^)]*)\)|Base)?\s*(?P<name>\w+)$", re.M)
_LOOKED_UP = re.compile(rb"(?<=\0)(?:cu(?!File)|nvml)[A-Z][a-z]\w{3,60}(?=\0)")
_STUB = """void virtual_miss(const char *);
#define STUB(n) __attribute__((weak)) long n(void) { \\
  static int told; if (!told++) virtual_miss(#n); return 0; }
"""
_SMALL_BYTES = 1 << 25

Names = dict[str, dict[str, set[str]]]
"""Names by library and version."""


def build_libraries(torch: Path, cuda: str) -> Path:
    """The folder of libraries for the build of torch in the folder *torch*, made for *cuda*."""
    major, minor = (int(number) for number in cuda.split(".")[:2])
    files = sorted((torch / "lib").glob("*.so"))
    sources = sorted(_SOURCES.iterdir())
    digest = hashlib.sha256(f"{cuda} {Path(__file__).read_text(encoding='utf-8')}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    for path in files:
        digest.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = kept / "perfmodel" / f"driver-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "driver.lock").open("w") as lock:
        # Emulations that begin at once build once; the others wait.
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fill(folder, torch, files, f"{major * 1000 + minor * 10}")
    return folder


def _fill(folder: Path, torch: Path, files: list[Path], cuda: str) -> None:
    """Build into *folder* what *files* ask for."""
    names = _names_of(files)
    with draft_folder_of(folder) as draft:
        (draft / "stubs").mkdir()
        flags = [f"-DCUDA={cuda}", f"-DCUDNN={_cudnn(torch)}", f"-I{_SOURCES}"]
        _compile(draft / _CORE, [_SOURCES / "core.c"], [*flags, "-pthread"])
        for library, versions in names.items():
            _build(draft, library, versions, flags)
            # Scripts that load the runtime themselves name no release.
            (draft / f"{library.split('.so')[0]}.so").symlink_to(library)


def _cudnn(torch: Path) -> int:
    """The release of cuDNN that the package of torch asks for, or a recent one."""
    stated = "".join(
        path.read_text(encoding="utf-8") for path in torch.parent.glob("torch-*.dist-info/METADATA")
    )
    found = re.search(r"nvidia-cudnn-cu\d+==(\d+)\.(\d+)\.(\d+)", stated)
    major, minor, patch = map(int, found.groups()) if found else (9, 20, 0)
    return 10_000 * major + 100 * minor + patch


def _names_of(files: list[Path]) -> Names:
    """The functions that *files* ask for."""
    libraries, symbols = set(_ALWAYS), set[tuple[str, str]]()
    for path in files:
        listed = _run("objdump", "-p", "-T", str(path))
        libraries.update(
            name
            for name in re.findall(r"NEEDED\s+(\S+)", listed)
            if name.split(".so")[0] in _LIBRARIES
        )
        symbols |= {(one["version"] or "", one["name"]) for one in _UNDEFINED.finditer(listed)}
        if path.stat().st_size < _SMALL_BYTES:
            symbols |= {("", name.decode()) for name in _LOOKED_UP.findall(path.read_bytes())}
    found: Names = {library: defaultdict(set) for library in libraries}
    for version, name in symbols:
        for library in _owners(version, name, libraries):
            found[library][version].add(name)
    return found


def _owners(version: str, name: str, libraries: set[str]) -> Iterator[str]:
    stem = version.split(".so")[0]
    for library in libraries:
        own = library.split(".so")[0]
        start = _LIBRARIES[own][1]
        is_nvshmem = version.startswith("NVSHMEM") and own == "libnvshmem_host"
        if own == stem or is_nvshmem or (not version and start and re.match(start, name)):
            yield library


def _build(folder: Path, library: str, versions: dict[str, set[str]], flags: list[str]) -> None:
    source = _LIBRARIES[library.split(".so")[0]][0]
    names = sorted(set().union(*versions.values()))
    stubs = folder / "stubs" / f"{library}.c"
    # A body in our source is not weak, and wins.
    lines = [_STUB, *(f"STUB({name})\n" for name in names)]
    stubs.write_text("".join(lines), encoding="utf-8")
    options = [f"-L{folder}", f"-l{_CORE[3:-3]}", "-Wl,-rpath,$ORIGIN", "-ldl"]
    stated = sorted(filter(None, versions))
    if stated:
        script = stubs.with_suffix(".map")
        script.write_text(f"{stated[0]} {{ global: *; }};\n", encoding="utf-8")
        options.append(f"-Wl,--version-script={script}")
    _compile(folder / library, [stubs, *([_SOURCES / source] if source else [])], flags, options)


def _compile(
    target: Path, sources: list[Path], flags: list[str], options: list[str] | None = None
) -> None:
    fixed = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-fno-builtin", "-w"]
    words = [*flags, *map(str, sources), "-o", str(target), f"-Wl,-soname,{target.name}"]
    _run("cc", *fixed, *words, *(options or []))


def _run(tool: str, *words: str) -> str:
    if shutil.which(tool) is None:
        raise EmulationError(
            f"--python: the virtual CUDA libraries are built by a C compiler and its tools, and "
            f"there is no {tool!r} here. Install gcc and binutils."
        )
    done = subprocess.run([tool, *words], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise EmulationError(f"--python: {tool} failed: {done.stderr.strip():.400}")
    return done.stdout

"""Stand-in of NVIDIA's management library: a real shared library with NVML's functions, which reads a file.

Each line of the file is one of these:

    gpu UUID NAME              a GPU; they are numbered in the order of the lines
    mig GPU UUID               a MIG device of a GPU
    holds GPU PID BYTES        a process on a GPU or, with MIG, on its first MIG device; -1 bytes: unknown
    lives GPU PID BYTES        the same while the process exists
    fails CODE                 nvmlInit_v2 returns this code
    hangs                      no function returns
"""

import atexit
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

FILE = "NVML_STAND_IN"
UNKNOWN = -1
SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;
typedef struct { int index, part; char uuid[96], name[96]; } Device;
static Device devices[64];
static int number;

static FILE *opened(void) {
    char line[256];
    FILE *file = fopen(getenv("NVML_STAND_IN"), "r");
    while (file && fgets(line, sizeof line, file)) if (!strncmp(line, "hangs", 5)) for (;;) pause();
    if (file) rewind(file);
    return file;
}
int nvmlInit_v2(void) {
    char line[256]; int code = 0, gpus = 0;
    FILE *file = opened();
    while (fgets(line, sizeof line, file)) {
        Device *next = &devices[number];
        if (sscanf(line, "gpu %95s %95s", next->uuid, next->name) == 2) {
            next->index = gpus++; next->part = -1; number++;
        } else if (sscanf(line, "mig %d %95s", &next->index, next->uuid) == 2) {
            strcpy(next->name, "MIG"); next->part = 0; number++;
        } else sscanf(line, "fails %d", &code);
    }
    fclose(file);
    return code;
}
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 0;
    for (int i = 0; i < number; i++) *count += devices[i].part < 0;
    return 0;
}
static int find(int index, int part, void **handle) {
    for (int i = 0; i < number; i++)
        if (devices[i].index == index && devices[i].part == part) { *handle = &devices[i]; return 0; }
    return 6;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return find(index, -1, handle); }
int nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *gpu, unsigned part, void **handle) {
    return find(gpu->index, part, handle);
}
int nvmlDeviceGetUUID(Device *gpu, char *text, unsigned size) { snprintf(text, size, "%s", gpu->uuid); return 0; }
int nvmlDeviceGetName(Device *gpu, char *text, unsigned size) { snprintf(text, size, "%s", gpu->name); return 0; }
int VERSION(Device *gpu, unsigned *count, Process *found) {
    char line[256], what[16]; int index, pid; long long used; unsigned most = *count;
    FILE *file = opened();
    *count = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%15s %d %d %lld", what, &index, &pid, &used) == 4 && index == gpu->index
            && (!strcmp(what, "holds") || (!strcmp(what, "lives") && !kill(pid, 0)))) {
            if (*count == most) { fclose(file); return 7; }
            found[*count].pid = pid; found[*count].used = used; (*count)++;
        }
    fclose(file);
    return 0;
}
"""


@cache
def library(version: str = "_v3") -> str:
    """Return the folder of a library whose function for processes has this version. It is removed with this process."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    folder = mkdtemp(prefix="nvml")
    atexit.register(shutil.rmtree, folder)
    (source := Path(folder, "nvml.c")).write_text(SOURCE)
    name = f"-DVERSION=nvmlDeviceGetComputeRunningProcesses{version}"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", name, "-o", f"{folder}/libnvidia-ml.so.1", str(source)], check=True
    )
    return folder


class PlayedDriver:
    """Reports of the library. Programs with `environment` load it."""

    def __init__(self, folder: Path, *lines: str, version: str = "_v3") -> None:
        self._file = folder / "nvml"
        self.environment = {"LD_LIBRARY_PATH": library(version), FILE: str(self._file)}
        self._gpus = lines or ("gpu GPU-0 H100",)
        self.says()

    def says(self, *lines: str) -> None:
        """Report these processes, or this trouble, beside the GPUs."""
        (new := self._file.with_suffix(".new")).write_text("".join(f"{line}\n" for line in (*self._gpus, *lines)))
        new.replace(self._file)

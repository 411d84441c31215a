/* A driver whose GPUs are named in FAKE_GPUS, for tests of distributed/driver.py.

   FAKE_GPUS: one GPU per space-separated word UUID/BUS/CAPABILITY, such as "a1/0000:3b:00.0/9.0"; a MIG instance is
   UUID:PARENT/BUS/CAPABILITY. UUIDs are up to 15 characters. FAKE_GPUS_0, FAKE_GPUS_1, … are those of a local rank.
   CUDA_VISIBLE_DEVICES: numbers, in any order, or UUIDs, as in CUDA; the first unknown one ends the list.
   FAKE_CUDA_ERROR: "FUNCTION STATUS" makes that function fail.
   Compiled with -DOLD it has no cuDeviceGetUuid_v2, like drivers before CUDA 11.4. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { char uuid[16], parent[16], bus[32]; int major, minor; } gpus[16], all[16];
static int num_gpus, started;

static int status(const char *function) {
    const char *text = getenv("FAKE_CUDA_ERROR");
    char name[64];
    int code;
    if (text && sscanf(text, "%63s %d", name, &code) == 2 && !strcmp(name, function)) return code;
    return started || !strcmp(function, "cuInit") ? 0 : 3; /* CUDA_ERROR_NOT_INITIALIZED */
}

int cuInit(unsigned flags) {
    char variable[32], list[1024] = "", visible[256] = "";
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK") ? getenv("OMPI_COMM_WORLD_LOCAL_RANK") : getenv("MPI_LOCALRANKID"), *text;
    int num_all = 0;
    if (flags || status("cuInit")) return flags ? 1 : status("cuInit");
    snprintf(variable, sizeof variable, "FAKE_GPUS_%s", rank ? rank : "0");
    if (!(text = getenv(variable))) text = getenv("FAKE_GPUS");
    snprintf(list, sizeof list, "%s", text ? text : "");
    for (char *word = strtok(list, " "); word; word = strtok(NULL, " "), num_all++) {
        char id[32], *parent;
        if (sscanf(word, "%31[^/]/%31[^/]/%d.%d", id, all[num_all].bus, &all[num_all].major, &all[num_all].minor) != 4)
            abort();
        if ((parent = strchr(id, ':'))) *parent++ = 0;
        snprintf(all[num_all].uuid, 16, "%s", id);
        snprintf(all[num_all].parent, 16, "%s", parent ? parent : id);
    }
    num_gpus = 0;
    if ((text = getenv("CUDA_VISIBLE_DEVICES"))) {
        snprintf(visible, sizeof visible, "%s", text);
        for (char *word = strtok(visible, ","); word; word = strtok(NULL, ",")) {
            int found = -1;
            for (int i = 0; i < num_all; i++) {
                char number[8];
                snprintf(number, sizeof number, "%d", i);
                if (!strcmp(word, number) || !strcmp(word, all[i].uuid)) found = i;
            }
            if (found < 0) break;
            gpus[num_gpus++] = all[found];
        }
    } else {
        memcpy(gpus, all, sizeof all);
        num_gpus = num_all;
    }
    started = 1;
    return num_gpus ? 0 : 100; /* CUDA_ERROR_NO_DEVICE */
}

int cuDriverGetVersion(int *version) { *version = 12040; return 0; } /* works before cuInit */
int cuDeviceGetCount(int *count) { *count = num_gpus; return status("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int index) { *device = index; return status("cuDeviceGet"); }

int cuDeviceGetUuid(void *uuid, int device) {
    memset(uuid, 0, 16);
    memcpy(uuid, gpus[device].parent, strlen(gpus[device].parent));
    return status("cuDeviceGetUuid");
}
#ifndef OLD
int cuDeviceGetUuid_v2(void *uuid, int device) {
    memset(uuid, 0, 16);
    memcpy(uuid, gpus[device].uuid, strlen(gpus[device].uuid));
    return status("cuDeviceGetUuid_v2");
}
#endif

int cuDeviceGetPCIBusId(char *bus, int size, int device) {
    snprintf(bus, size, "%s", gpus[device].bus);
    return status("cuDeviceGetPCIBusId");
}
int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, size, "Fake %d%d", gpus[device].major, gpus[device].minor);
    return status("cuDeviceGetName");
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute != 75 && attribute != 76) return 1; /* CUDA_ERROR_INVALID_VALUE */
    *value = attribute == 75 ? gpus[device].major : gpus[device].minor;
    return status("cuDeviceGetAttribute");
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 999 ? "CUDA_ERROR_UNKNOWN" : code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : NULL;
    return *name ? 0 : 1;
}

/* NVML, as far as the agent and torch call it, for a host that the environment variable FAKE_NVML describes:
 *
 *   init CODE                                  what nvmlInit answers
 *   gpu CODE DOMAIN BUS DEVICE UUID MODEL      CODE: what asking for its handle answers; numbers in hexadecimal
 *   mig INSTANCE COMPUTE_INSTANCE UUID         in the next slot of the GPU above it; "mig - - -" leaves a slot empty
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char uuid[96], model[96];
    unsigned code, domain, bus, device, instance, compute_instance, slots;
} device_t;

typedef struct { /* nvmlPciInfo_t */
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_t;

enum { OK, UNINITIALIZED, NO_SUCH = 6, TOO_SMALL, GPUS = 64, SLOTS = 8 };

static device_t gpus[GPUS], migs[GPUS][SLOTS];
static unsigned count, opened;

int nvmlInit_v2(void) {
    static char text[1 << 14];
    int code = 0;
    count = 0;
    strncpy(text, getenv("FAKE_NVML"), sizeof text - 1);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        device_t d = {0};
        if (sscanf(line, "init %d", &code) == 1)
            continue;
        if (sscanf(line, "gpu %u %x %x %x %95s %95[^\n]", &d.code, &d.domain, &d.bus, &d.device, d.uuid, d.model) == 6) {
            gpus[count++] = d;
        } else if (!strncmp(line, "mig", 3)) {
            sscanf(line, "mig %u %u %95s", &d.instance, &d.compute_instance, d.uuid);
            migs[count - 1][gpus[count - 1].slots++] = d;
        } else {
            abort();
        }
    }
    opened += !code;
    return code;
}

int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return opened-- ? OK : UNINITIALIZED; }
unsigned fake_opened(void) { return opened; }

const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "?";
}

int nvmlDeviceGetCount_v2(unsigned *answer) {
    *answer = count;
    return opened ? OK : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **answer) {
    if (!opened)
        return UNINITIALIZED;
    if (index >= count)
        return NO_SUCH;
    *answer = &gpus[index];
    return gpus[index].code;
}

static int give(const char *text, char *answer, unsigned length) {
    if (!opened)
        return UNINITIALIZED;
    if (strlen(text) >= length)
        return TOO_SMALL;
    strcpy(answer, text);
    return OK;
}

int nvmlDeviceGetUUID(device_t *device, char *answer, unsigned length) { return give(device->uuid, answer, length); }
int nvmlDeviceGetName(device_t *device, char *answer, unsigned length) { return give(device->model, answer, length); }

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *answer) {
    pci_t pci = {.domain = device->domain, .bus = device->bus, .device = device->device};
    snprintf(pci.busId, sizeof pci.busId, "%08X:%02X:%02X.0", device->domain, device->bus, device->device);
    *answer = pci;
    return opened ? OK : UNINITIALIZED;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *answer) {
    *answer = device->slots;
    return opened ? OK : UNINITIALIZED;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned slot, device_t **answer) {
    *answer = &migs[device - gpus][slot];
    return (*answer)->uuid[0] ? OK : NO_SUCH;
}

int nvmlDeviceGetGpuInstanceId(device_t *device, unsigned *answer) {
    *answer = device->instance;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(device_t *device, unsigned *answer) {
    *answer = device->compute_instance;
    return OK;
}
#endif

#include "os/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "core/foundation/base.h"

void *um_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void um_prefer_huge_pages(void *memory, size_t bytes)
{
    madvise(memory, bytes, MADV_HUGEPAGE);
}

void um_unmap(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

void *um_allocate(size_t bytes)
{
    bytes = um_align_up(bytes, UM_CACHE_LINE_BYTES);
    void *memory = aligned_alloc(UM_CACHE_LINE_BYTES, bytes);
    return memory == NULL ? NULL : memset(memory, 0, bytes);
}

/* Memory for objects above ffi/core, which allocates nothing. Any thread. */
#ifndef UM_OS_MEMORY_H
#define UM_OS_MEMORY_H

#include <stddef.h>

/* Zeroed pages for large objects, backed when first touched. NULL if there is no memory. Freed by um_unmap. */
void *um_map(size_t bytes);
/* Backs mapped pages with huge pages if available, still when first touched: for memory that is used from end to end at
 * full speed. */
void um_prefer_huge_pages(void *memory, size_t bytes);
/* `memory` may be NULL. */
void um_unmap(void *memory, size_t bytes);
/* Zeroed memory for small, numerous objects: if each started a page, they would compete for the same few cache sets.
 * NULL if there is no memory. Freed by free. */
void *um_allocate(size_t bytes);

#endif

/* Memory of objects above ffi/core, which allocates nothing. Any thread. */
#ifndef UM_OS_MEMORY_H
#define UM_OS_MEMORY_H

#include <stddef.h>

/* Zeroed pages, for what is large: they are backed when first touched. NULL when there are none. Freed by um_unmap. */
void *um_map(size_t bytes);
/* Backs mapped pages now, with huge pages where the system has them: for what is used from end to end, at full speed.
 */
void um_back(void *memory, size_t bytes);
/* NULL is nothing to unmap. */
void um_unmap(void *memory, size_t bytes);
/* Zeroed memory for what is small and many: objects that each begin a page would compete for the same few cache sets.
 * NULL when there is none. Freed by free. */
void *um_allocate(size_t bytes);

#endif

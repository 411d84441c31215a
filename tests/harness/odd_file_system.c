/* Preloaded: the folder ODD_UNDER is on a file system that lacks all that ODD names. chmod: EPERM, as over SMB.
 * dirsync: fsync of folders, EINVAL. flock: ENOLCK, as NFS without its lock daemon. rename: of folders, ENOSYS, as
 * mounts of stores. read: EIO from opening manifest.json, or the file ODD_FILE, as a disk or a file server with a
 * fault. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int lacks(const char *what)
{
    const char *odd = getenv("ODD");
    return odd && strstr(odd, what);
}

static int is_under(const char *path)
{
    const char *root = getenv("ODD_UNDER");
    return root && path && strncmp(path, root, strlen(root)) == 0;
}

static int is_open_under(int descriptor)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return is_under(path);
}

#define NEXT(name) __typeof__(&name) next = dlsym(RTLD_NEXT, #name)
#define REFUSE(error) do { errno = (error); return -1; } while (0)

int chmod(const char *path, mode_t mode)
{
    NEXT(chmod);
    if (lacks("chmod") && is_under(path))
        REFUSE(EPERM);
    return next(path, mode);
}

int fchmodat(int folder, const char *path, mode_t mode, int flags)
{
    NEXT(fchmodat);
    if (lacks("chmod") && is_under(path))
        REFUSE(EPERM);
    return next(folder, path, mode, flags);
}

int fsync(int descriptor)
{
    NEXT(fsync);
    struct stat status;
    if (lacks("dirsync") && is_open_under(descriptor) && !fstat(descriptor, &status) && S_ISDIR(status.st_mode))
        REFUSE(EINVAL);
    return next(descriptor);
}

int flock(int descriptor, int operation)
{
    NEXT(flock);
    if (lacks("flock") && is_open_under(descriptor))
        REFUSE(ENOLCK);
    return next(descriptor, operation);
}

int rename(const char *from, const char *to)
{
    NEXT(rename);
    struct stat status;
    if (lacks("rename") && is_under(from) && !stat(from, &status) && S_ISDIR(status.st_mode))
        REFUSE(ENOSYS);
    return next(from, to);
}

static int is_faulty(const char *path)
{
    const char *file = getenv("ODD_FILE");
    return lacks("read") && is_under(path) && strstr(path, file ? file : "manifest.json") && !strstr(path, ".tmp");
}

int open64(const char *path, int flags, ...)
{
    NEXT(open64);
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (is_faulty(path) && (flags & O_ACCMODE) == O_RDONLY)
        REFUSE(EIO);
    return next(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    NEXT(open);
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (is_faulty(path) && (flags & O_ACCMODE) == O_RDONLY)
        REFUSE(EIO);
    return next(path, flags, mode);
}

/*
 * Client of kvfs in C: blocks, which are files below the mount, and look-ups of many of them by <mount>/.kvfs/query.
 *
 *     struct kvfs kv;
 *     struct kvfs_hit hit;
 *     char *states = malloc(n), key[256];
 *     if (kvfs_open(&kv, "/mnt/kv") < 0)
 *         err(1, "/mnt/kv");
 *     kvfs_key(key, sizeof key, "g0", hashes, 16);
 *     if (kvfs_put(&kv, key, block, size) < 0)
 *         errx(1, "%s: %s", key, kvfs_error(&kv));
 *     if (kvfs_get(&kv, key, block, room, &size) < 0 && errno != ENOENT)
 *         errx(1, "%s: %s", key, kvfs_error(&kv));
 *     struct kvfs_query q = {.group = "g0", .hashes = hashes, .hash_size = 16, .count = n};
 *     if (kvfs_exists(&kv, &q, states, &hit) < 0)
 *         errx(1, "%s", kvfs_error(&kv));
 *
 * Everything is in this header; its functions are static. C99 or C++11 with POSIX. A struct kvfs is for one thread at
 * a time. Each function returns 0, or -1 with errno: EINVAL if the daemon refuses the request (kvfs_error has the
 * reason), ENOTCONN if the daemon is gone (close and open again), otherwise that of the system call. Calls wait for
 * the answer of the daemon. kvfs_key, kvfs_put and kvfs_get need only the rights of the files.
 *
 * Source: docs/control.md, "query in binary"; docs/semantics.md, "Writing".
 */
#ifndef KVFS_H
#define KVFS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* kvfs is an open mount. */
struct kvfs {
	int fd;         /* of .kvfs/query; -1: this user may not open it */
	int dir;        /* of the mount */
	uint32_t temps; /* temporary names so far */
	char text[256]; /* why the last call failed */
};

enum {
	KVFS_NO_LEASE = 1, /* do not keep what is there readable for mount.lookup_lease */
	KVFS_PROMOTE = 2,  /* begin to load hits that are not in memory */
	KVFS_TEXT = 4      /* hashes are the text of names; otherwise bytes, which stand for lower-case hexadecimal */
};

#define KVFS_NO_DEADLINE UINT32_MAX

/* kvfs_query names blocks. Members that are 0 have their default. */
struct kvfs_query {
	const char *group;    /* directory of the blocks (kvfs_exists) */
	const char *spec;     /* name of the spec (kvfs_longest_hit) */
	const char *path;     /* template of the path of a block; NULL: {group}/{hash} */
	const char *request;  /* name of the request in logs and for its leases */
	const void *hashes;   /* count times hash_size bytes, one after another */
	uint32_t count;
	uint16_t hash_size;   /* bytes of each hash */
	uint16_t ranks;       /* 0: 1 */
	uint32_t deadline_ms; /* what would come later counts as not there; 0: the group's; or KVFS_NO_DEADLINE */
	uint32_t num_tokens;  /* length of the prompt (kvfs_longest_hit); 0: that of all hashes */
	uint8_t flags;        /* KVFS_... */
};

/* kvfs_hit is the answer. */
struct kvfs_hit {
	uint32_t hits;    /* blocks that are there (kvfs_exists), or tokens that need not be computed (kvfs_longest_hit) */
	uint32_t pending; /* blocks on their way */
	uint32_t late;    /* blocks that would come after the deadline */
	uint32_t prefix;  /* kvfs_exists: how many leading blocks are there */
	int capped;       /* kvfs_longest_hit: all tokens were there, and the last one is to be computed */
	uint32_t groups;  /* kvfs_longest_hit: number of groups of the spec */
};

/* kvfs_group is what to read of one group of layers, for a longest hit. */
struct kvfs_group {
	char *load;      /* count bytes: '1' read the block, '0' it is not needed. free(3) it. */
	uint32_t count;  /* blocks up to the hit */
};

/* kvfs_error returns why the last call failed. */
static inline const char *kvfs_error(const struct kvfs *kv) { return kv->text; }

static inline int kvfs_fail_(struct kvfs *kv, int code, const char *text)
{
	snprintf(kv->text, sizeof kv->text, "%s", text ? text : strerror(code));
	errno = code;
	return -1;
}

/* kvfs_openat_ is openat(2), again after a signal. */
static inline int kvfs_openat_(int dir, const char *path, int flags)
{
	int fd;
	do
		fd = openat(dir, path, flags | O_CLOEXEC, 0666);
	while (fd < 0 && errno == EINTR);
	return fd;
}

static inline void kvfs_close(struct kvfs *kv)
{
	if (kv->fd >= 0)
		close(kv->fd);
	if (kv->dir >= 0)
		close(kv->dir);
	kv->fd = kv->dir = -1;
}

/*
 * kvfs_open opens the mount at dir. kvfs_close closes it. A user who may not use the control files can open a mount,
 * too: look-ups then fail with EACCES.
 */
static inline int kvfs_open(struct kvfs *kv, const char *dir)
{
	int code = 0;
	kv->fd = kv->dir = -1;
	kv->temps = 0;
	kv->text[0] = 0;
	if ((kv->dir = kvfs_openat_(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY)) < 0)
		return kvfs_fail_(kv, errno, NULL);
	if ((kv->fd = kvfs_openat_(kv->dir, ".kvfs/query", O_RDWR)) < 0 && errno != EACCES)
		code = errno;
	if (!code)
		return 0;
	kvfs_close(kv);
	return kvfs_fail_(kv, code, NULL);
}

static inline void kvfs_put_(unsigned char *p, uint32_t n, int bytes)
{
	for (int i = 0; i < bytes; i++)
		p[i] = (unsigned char)(n >> 8 * i);
}

static inline uint32_t kvfs_get_(const unsigned char *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* kvfs_write_ writes all of p to a descriptor. */
static inline int kvfs_write_(struct kvfs *kv, int fd, const unsigned char *p, size_t n)
{
	while (n > 0) {
		ssize_t m = write(fd, p, n);
		if (m < 0 && errno == EINTR)
			continue;
		if (m < 0)
			return kvfs_fail_(kv, errno, NULL);
		p += m;
		n -= (size_t)m;
	}
	return 0;
}

/*
 * kvfs_key writes the path below the mount of a block: its group, a slash, and its hash in lower-case hexadecimal, as
 * look-ups without KVFS_TEXT name it. It needs strlen(group) + 2 * hash_size + 2 bytes, else it fails with ENAMETOOLONG.
 */
static inline int kvfs_key(char *key, size_t room, const char *group, const void *hash, size_t hash_size)
{
	const unsigned char *p = (const unsigned char *)hash;
	size_t at = strlen(group);
	if (room < at + 2 || (room - at - 2) / 2 < hash_size) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(key, group, at);
	key[at++] = '/';
	for (size_t i = 0; i < hash_size; i++) {
		key[at++] = "0123456789abcdef"[p[i] >> 4];
		key[at++] = "0123456789abcdef"[p[i] & 15];
	}
	key[at] = 0;
	return 0;
}

/* kvfs_relative_ fails for what is no path below the mount. */
static inline int kvfs_relative_(struct kvfs *kv, const char *key)
{
	return key[0] == 0 || key[0] == '/' ? kvfs_fail_(kv, EINVAL, "the key is no path below the mount") : 0;
}

/* kvfs_mkdirs_ makes the directories above a file that are missing. It changes path, and changes it back. */
static inline void kvfs_mkdirs_(struct kvfs *kv, char *path)
{
	for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		(void)!mkdirat(kv->dir, path, 0777); /* the open that follows tells what is wrong */
		*slash = '/';
	}
}

/*
 * kvfs_put writes a block. key is its path below the mount. Other processes see the block complete or not at all. It
 * makes the directories that are missing. It may wait for room.
 */
static inline int kvfs_put(struct kvfs *kv, const char *key, const void *block, size_t size)
{
	char temp[4200];
	struct timespec now;
	int fd = -1, failed;
	if (kvfs_relative_(kv, key) < 0)
		return -1;
	if (strlen(key) > 4095)
		return kvfs_fail_(kv, ENAMETOOLONG, NULL);
	clock_gettime(CLOCK_MONOTONIC, &now);
	for (int tries = 0; fd < 0 && tries < 8; tries++) {
		snprintf(temp, sizeof temp, "%s.%lx-%lx-%x.tmp", key, (unsigned long)getpid(), (unsigned long)now.tv_nsec, (unsigned)kv->temps++);
		fd = kvfs_openat_(kv->dir, temp, O_WRONLY | O_CREAT | O_EXCL);
		if (fd < 0 && errno == ENOENT)
			kvfs_mkdirs_(kv, temp);
		else if (fd < 0 && errno != EEXIST)
			break;
	}
	if (fd < 0)
		return kvfs_fail_(kv, errno, NULL);
	failed = kvfs_write_(kv, fd, (const unsigned char *)block, size);
	if (close(fd) < 0 && !failed)
		failed = kvfs_fail_(kv, errno, NULL);
	if (!failed && renameat(kv->dir, temp, kv->dir, key) < 0)
		failed = kvfs_fail_(kv, errno, NULL);
	if (failed) {
		int code = errno;
		unlinkat(kv->dir, temp, 0);
		errno = code;
	}
	return failed;
}

/*
 * kvfs_get reads a block into a buffer with room bytes. *size gets the size of the block. A block that is not there, or
 * cannot be had in time, is ENOENT: compute it. A block larger than room is EOVERFLOW, and *size says how large.
 */
static inline int kvfs_get(struct kvfs *kv, const char *key, void *buffer, size_t room, size_t *size)
{
	struct stat st;
	unsigned char *p = (unsigned char *)buffer;
	int fd, failed = 0;
	size_t n = 0;
	*size = 0;
	if (kvfs_relative_(kv, key) < 0)
		return -1;
	if ((fd = kvfs_openat_(kv->dir, key, O_RDONLY)) < 0)
		return kvfs_fail_(kv, errno, NULL);
	if (fstat(fd, &st) < 0)
		failed = kvfs_fail_(kv, errno, NULL);
	else if ((*size = (size_t)st.st_size) > room)
		failed = kvfs_fail_(kv, EOVERFLOW, "the block is larger than the buffer");
	while (!failed && n < *size) {
		ssize_t m = pread(fd, p + n, *size - n, (off_t)n);
		if (m > 0)
			n += (size_t)m;
		else if (m == 0 || errno != EINTR)
			failed = kvfs_fail_(kv, m == 0 ? EIO : errno, m == 0 ? "the block became shorter while it was read" : NULL);
	}
	int code = errno;
	close(fd);
	errno = code;
	return failed;
}

/* kvfs_read_ returns the whole answer, with its size in *n. free(3) it. */
static inline unsigned char *kvfs_read_(struct kvfs *kv, size_t *n)
{
	size_t room = 128 << 10;
	unsigned char *p = (unsigned char *)malloc(room);
	*n = 0;
	while (p) {
		ssize_t m = read(kv->fd, p + *n, room - *n);
		if (m < 0 && errno == EINTR)
			continue;
		if (m < 0) {
			kvfs_fail_(kv, errno, NULL);
			free(p);
			return NULL;
		}
		if (m == 0)
			return p;
		*n += (size_t)m;
		if (*n == room) {
			unsigned char *more = (unsigned char *)realloc(p, room *= 2);
			if (!more)
				free(p);
			p = more;
		}
	}
	kvfs_fail_(kv, ENOMEM, NULL);
	return NULL;
}

/* kvfs_ask_ sends a query and returns the answer, with at least its header. free(3) it. */
static inline unsigned char *kvfs_ask_(struct kvfs *kv, int op, const char *name, const struct kvfs_query *q, size_t *n)
{
	const char *texts[3] = {name ? name : "", q->path ? q->path : "", q->request ? q->request : ""};
	size_t lengths[3], size = 32, hashes = (size_t)q->count * q->hash_size;
	unsigned char *p, *answer;
	for (int i = 0; i < 3; i++) {
		lengths[i] = strlen(texts[i]);
		if (lengths[i] > UINT16_MAX) {
			kvfs_fail_(kv, EINVAL, "a name is longer than 65535 bytes");
			return NULL;
		}
		size += lengths[i];
	}
	p = (unsigned char *)calloc(1, size + hashes);
	if (!p) {
		kvfs_fail_(kv, ENOMEM, NULL);
		return NULL;
	}
	memcpy(p, "KVQ1", 4);
	p[4] = (unsigned char)op;
	p[5] = q->flags;
	kvfs_put_(p + 6, q->hash_size, 2);
	kvfs_put_(p + 8, q->count, 4);
	kvfs_put_(p + 12, q->deadline_ms, 4);
	for (int i = 0; i < 3; i++)
		kvfs_put_(p + 16 + 2 * i, (uint32_t)lengths[i], 2);
	kvfs_put_(p + 22, q->ranks, 2);
	kvfs_put_(p + 24, q->num_tokens, 4);
	size = 32;
	for (int i = 0; i < 3; size += lengths[i++])
		memcpy(p + size, texts[i], lengths[i]);
	if (hashes > 0)
		memcpy(p + size, q->hashes, hashes);
	int failed = kv->fd < 0 ? kvfs_fail_(kv, EACCES, NULL) : kvfs_write_(kv, kv->fd, p, size + hashes);
	free(p);
	answer = failed ? NULL : kvfs_read_(kv, n);
	if (!answer)
		return NULL;
	if (*n >= 24 && memcmp(answer, "KVA1", 4) == 0)
		return answer;
	if (*n >= 8 && memcmp(answer, "KVE1", 4) == 0) {
		size_t length = kvfs_get_(answer + 4), most = sizeof kv->text - 1;
		length = length < *n - 8 ? length : *n - 8;
		length = length < most ? length : most;
		memcpy(kv->text, answer + 8, length);
		kv->text[length] = 0;
		errno = EINVAL;
	} else {
		kvfs_fail_(kv, EPROTO, NULL);
	}
	free(answer);
	return NULL;
}

/*
 * kvfs_exists asks which blocks are there. states, unless NULL, gets a byte for each of them: m in memory, d on the
 * SSD, p at a peer, w pending, l late, . miss, / a directory.
 */
static inline int kvfs_exists(struct kvfs *kv, const struct kvfs_query *q, char *states, struct kvfs_hit *hit)
{
	size_t n;
	unsigned char *p = kvfs_ask_(kv, 1, q->group, q, &n);
	if (!p)
		return -1;
	if (kvfs_get_(p + 20) != q->count || n - 24 != q->count) {
		free(p);
		return kvfs_fail_(kv, EPROTO, NULL);
	}
	memset(hit, 0, sizeof *hit);
	hit->hits = kvfs_get_(p + 4);
	hit->pending = kvfs_get_(p + 8);
	hit->late = kvfs_get_(p + 12);
	hit->prefix = kvfs_get_(p + 16);
	if (states)
		memcpy(states, p + 24, q->count);
	free(p);
	return 0;
}

/*
 * kvfs_longest_hit asks how many tokens from the beginning of a prompt need not be computed. groups has room for most
 * groups, and gets what to read of each, in the order of the spec. A spec with more groups is EOVERFLOW.
 */
static inline int kvfs_longest_hit(struct kvfs *kv, const struct kvfs_query *q, struct kvfs_group *groups, uint32_t most,
	struct kvfs_hit *hit)
{
	size_t n, at = 24;
	uint32_t i = 0;
	int code = 0;
	unsigned char *p = kvfs_ask_(kv, 2, q->spec, q, &n);
	if (!p)
		return -1;
	memset(hit, 0, sizeof *hit);
	hit->hits = kvfs_get_(p + 4);
	hit->pending = kvfs_get_(p + 8);
	hit->late = kvfs_get_(p + 12);
	hit->capped = kvfs_get_(p + 16) != 0;
	hit->groups = kvfs_get_(p + 20);
	if (hit->groups > most)
		code = EOVERFLOW;
	for (; !code && i < hit->groups; i++) {
		groups[i].load = NULL;
		if (n - at < 4 || n - at - 4 < (groups[i].count = kvfs_get_(p + at)))
			code = EPROTO;
		else if (!(groups[i].load = (char *)malloc(groups[i].count + 1)))
			code = ENOMEM;
		else {
			memcpy(groups[i].load, p + at + 4, groups[i].count);
			groups[i].load[groups[i].count] = 0;
			at += 4 + groups[i].count;
		}
	}
	free(p);
	if (!code)
		return 0;
	while (i-- > 0)
		free(groups[i].load);
	return kvfs_fail_(kv, code, NULL);
}

#endif

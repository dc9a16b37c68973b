/* Writes and reads a block, and prints how each call ended: test_block MOUNT GROUP SIZE TOO_MUCH. */
#include "kvfs.h"

static const char *ended(struct kvfs *kv, int result)
{
	if (result == 0)
		return "ok";
	switch (errno) {
	case ENOENT: return "ENOENT";
	case EINVAL: return "EINVAL";
	case EOVERFLOW: return "EOVERFLOW";
	case ENOSPC: return "ENOSPC";
	case ENAMETOOLONG: return "ENAMETOOLONG";
	}
	return kvfs_error(kv);
}

int main(int argc, char **argv)
{
	struct kvfs kv;
	const unsigned char hash[4] = {0x9f, 0x08, 0x00, 0xef};
	char key[256];
	if (argc < 5 || kvfs_open(&kv, argv[1]) < 0)
		return 2;
	size_t size = (size_t)atol(argv[3]), much = (size_t)atol(argv[4]), got;
	unsigned char *block = (unsigned char *)malloc(size), *back = (unsigned char *)malloc(size), *large = (unsigned char *)calloc(1, much);
	if (!block || !back || !large)
		return 2;
	for (size_t i = 0; i < size; i++)
		block[i] = (unsigned char)(i * 7 + i / 251);
	printf("key %s\n", ended(&kv, kvfs_key(key, strlen(argv[2]) + 9, argv[2], hash, sizeof hash)));
	printf("key %s\n", ended(&kv, kvfs_key(key, sizeof key, argv[2], hash, sizeof hash)));
	printf("%s\n", key);
	printf("get %s\n", ended(&kv, kvfs_get(&kv, key, back, size, &got)));
	for (int twice = 0; twice < 2; twice++) /* a new version replaces the old one */
		printf("put %s\n", ended(&kv, kvfs_put(&kv, key, block, size)));
	printf("get %s", ended(&kv, kvfs_get(&kv, key, back, size, &got)));
	printf(" %lu %d\n", (unsigned long)got, memcmp(block, back, size) == 0);
	printf("get %s", ended(&kv, kvfs_get(&kv, key, back, size - 1, &got)));
	printf(" %lu\n", (unsigned long)got);
	printf("put %s\n", ended(&kv, kvfs_put(&kv, "g/empty", block, 0)));
	printf("get %s", ended(&kv, kvfs_get(&kv, "g/empty", back, 0, &got)));
	printf(" %lu\n", (unsigned long)got);
	printf("put %s\n", ended(&kv, kvfs_put(&kv, "g/large", large, much)));
	printf("put %s\n", ended(&kv, kvfs_put(&kv, "/tmp/x", block, size)));
	kvfs_close(&kv);
	free(block);
	free(back);
	free(large);
	return 0;
}

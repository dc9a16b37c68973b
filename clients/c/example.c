/* Says which blocks of a group are there, and how many leading ones: example MOUNT GROUP HASH... */
#include "kvfs.h"

int main(int argc, char **argv)
{
	struct kvfs kv;
	struct kvfs_hit hit;
	if (argc < 4) {
		fprintf(stderr, "usage: %s MOUNT GROUP HASH...\n", argv[0]);
		return 2;
	}
	size_t size = strlen(argv[3]);
	struct kvfs_query q;
	memset(&q, 0, sizeof q);
	q.group = argv[2];
	q.hash_size = (uint16_t)size;
	q.count = (uint32_t)(argc - 3);
	q.flags = KVFS_TEXT;
	char *hashes = (char *)malloc(q.count * size), *states = (char *)malloc(q.count);
	if (!hashes || !states)
		return 1;
	for (uint32_t i = 0; i < q.count; i++) {
		if (strlen(argv[3 + i]) != size) {
			fprintf(stderr, "%s: hashes must have one length\n", argv[3 + i]);
			return 2;
		}
		memcpy(hashes + i * size, argv[3 + i], size);
	}
	q.hashes = hashes;
	if (kvfs_open(&kv, argv[1]) < 0 || kvfs_exists(&kv, &q, states, &hit) < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], kvfs_error(&kv));
		return 1;
	}
	printf("%.*s hits %u pending %u late %u prefix %u\n", (int)q.count, states, hit.hits, hit.pending, hit.late, hit.prefix);
	kvfs_close(&kv);
	free(hashes);
	free(states);
	return 0;
}

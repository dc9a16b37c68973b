/* Asks for the longest hit of a prompt, and prints the answer: test_kvfs MOUNT SPEC TEMPLATE MOST HASH... Each HASH has
 * 32 digits. */
#include "kvfs.h"

static unsigned char digit(char c) { return (unsigned char)(c <= '9' ? c - '0' : c - 'a' + 10); }

int main(int argc, char **argv)
{
	struct kvfs kv;
	struct kvfs_hit hit;
	struct kvfs_group groups[8];
	struct kvfs_query q;
	if (argc < 5 || kvfs_open(&kv, argv[1]) < 0)
		return 2;
	memset(&q, 0, sizeof q);
	q.spec = argv[2];
	q.path = argv[3];
	q.count = (uint32_t)(argc - 5);
	q.hash_size = 16;
	q.deadline_ms = KVFS_NO_DEADLINE;
	unsigned char *hashes = (unsigned char *)malloc(16 * q.count + 1);
	if (!hashes)
		return 2;
	for (uint32_t i = 0; i < 16 * q.count; i++)
		hashes[i] = (unsigned char)(digit(argv[5 + i / 16][i % 16 * 2]) << 4 | digit(argv[5 + i / 16][i % 16 * 2 + 1]));
	q.hashes = hashes;
	for (int twice = 0; twice < 2; twice++) { /* one descriptor serves any number of calls */
		if (kvfs_longest_hit(&kv, &q, groups, (uint32_t)atoi(argv[4]), &hit) < 0) {
			printf("errno %d: %s\n", errno == EINVAL ? 1 : errno == EOVERFLOW ? 2 : 3, kvfs_error(&kv));
			continue;
		}
		printf("hit %u pending %u late %u capped %d", hit.hits, hit.pending, hit.late, hit.capped);
		for (uint32_t i = 0; i < hit.groups; i++) {
			printf(" %s", groups[i].load);
			free(groups[i].load);
		}
		printf("\n");
	}
	free(hashes);
	kvfs_close(&kv);
	return 0;
}

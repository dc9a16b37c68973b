//go:build ofi && cgo

// The part of libfabric that the package uses, as plain functions. Only the headers are
// needed to build: the library is opened at run time, and all but a few of its functions
// are reached through tables in its objects.

#ifndef KVFS_FABRIC_SHIM_H
#define KVFS_FABRIC_SHIM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct fi_info;
struct fid_mr;
struct fid_fabric;
struct fid_domain;

// Functions that can fail return 0 or a negative error of libfabric; what names the failed step.

int kf_load(const char *path, char *why, size_t size);
uint32_t kf_version(void);
const char *kf_strerror(int err);

// kf_info is the needed part of a struct fi_info. The strings live as long as info.
struct kf_info {
	struct fi_info *info;
	const char *provider, *domain;
	uint64_t max_message;
	uint64_t key_size;
	uint32_t format;
	int virtual_address, local, read_order;
};

// kf_getinfo finds the first endpoint of a provider, on a domain and with a source address unless
// they are null. With manual it makes progress only when it is polled, and needs no thread of its
// own. names gets the domains of all that fit.
int kf_getinfo(const char *provider, const char *domain, const char *host, int manual, struct kf_info *out, char *names, size_t size);
void kf_freeinfo(struct fi_info *info);

// kf_rail is an open device.
struct kf_rail {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	int serial; // nothing is registered while an endpoint that peers read from makes progress
	pthread_mutex_t lock;
};

int kf_rail_open(struct fi_info *info, int serial, struct kf_rail *r, const char **what);
int kf_rail_close(struct kf_rail *r);

struct kf_ep;

// kf_done is one completed operation.
struct kf_done {
	int slot; // -1: not an operation of the caller
	int err;  // positive, 0: done
	int detail;
};

// KF_DEPTH is the most operations under way on an endpoint.
#define KF_DEPTH 64
// KF_BATCH is the most operations that kf_ep_poll returns.
#define KF_BATCH 16

// kf_ep_open opens an endpoint that reads from the peer at addr, or that peers read from if addr is
// null. flags: KF_POLL: the provider is not asked to wake; KF_LOCAL: destinations must be
// registered; KF_OWN: it gets its own domain.
#define KF_POLL 1
#define KF_LOCAL 2
#define KF_OWN 4
int kf_ep_open(struct kf_rail *r, const void *addr, size_t size, int flags, struct kf_ep **out, const char **what);
// kf_ep_close ends all operations. No other thread may be in a function of e.
int kf_ep_close(struct kf_ep *e);
int kf_ep_name(struct kf_ep *e, void *addr, size_t *size);
int kf_ep_wakes(struct kf_ep *e);
// kf_ep_read begins to read len bytes; kf_ep_word 8 bytes to kf_ep_word_of the slot.
int kf_ep_read(struct kf_ep *e, int slot, void *buf, size_t len, struct fid_mr *mr, uint64_t at, uint64_t key);
int kf_ep_word(struct kf_ep *e, int slot, uint64_t at, uint64_t key);
uint64_t kf_ep_word_of(struct kf_ep *e, int slot);
// kf_ep_poll makes progress and returns how many operations are over. If none is, it sleeps until
// there may be one, kf_ep_wake was called, or the time has passed.
int kf_ep_poll(struct kf_ep *e, struct kf_done *out, int timeout_ms);
void kf_ep_wake(struct kf_ep *e);
// kf_ep_pause sleeps until kf_ep_wake was called or the time has passed.
void kf_ep_pause(struct kf_ep *e, int timeout_ms);

int kf_mr_open(struct kf_rail *r, const void *buf, size_t len, int remote, uint64_t want, struct fid_mr **mr, uint64_t *key);
int kf_mr_close(struct kf_rail *r, struct fid_mr *mr);

#endif

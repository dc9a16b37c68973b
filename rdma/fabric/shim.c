//go:build ofi && cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

static struct {
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	void (*freeinfo)(struct fi_info *);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	const char *(*strerror)(int);
	uint32_t (*version)(void);
} lib;

// Some providers replace signal handlers of the Go runtime by their own. The handlers are saved and
// restored around each call that loads or initialises a provider.
#define SIGNALS 65

static void keep_signals(struct sigaction *kept)
{
	for (int i = 1; i < SIGNALS; i++)
		if (sigaction(i, NULL, &kept[i]))
			memset(&kept[i], 0, sizeof kept[i]);
}

// Changes by Go itself meanwhile stay: it has one handler for all signals, that of SIGSEGV, and
// otherwise restores the default.
static void restore_signals(const struct sigaction *kept)
{
	for (int i = 1; i < SIGNALS; i++) {
		struct sigaction now;
		if (sigaction(i, NULL, &now) || now.sa_sigaction == kept[i].sa_sigaction)
			continue;
		if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
			continue;
		if (now.sa_sigaction == kept[SIGSEGV].sa_sigaction)
			continue;
		sigaction(i, &kept[i], NULL);
	}
}

int kf_load(const char *path, char *why, size_t size)
{
	struct sigaction kept[SIGNALS];
	keep_signals(kept);
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	restore_signals(kept);
	if (!h) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	lib.getinfo = dlsym(h, "fi_getinfo");
	lib.freeinfo = dlsym(h, "fi_freeinfo");
	lib.dupinfo = dlsym(h, "fi_dupinfo");
	lib.fabric = dlsym(h, "fi_fabric");
	lib.strerror = dlsym(h, "fi_strerror");
	lib.version = dlsym(h, "fi_version");
	if (!lib.getinfo || !lib.freeinfo || !lib.dupinfo || !lib.fabric || !lib.strerror || !lib.version) {
		snprintf(why, size, "%s: no libfabric: functions are missing", path);
		dlclose(h);
		return -1;
	}
	return 0;
}

uint32_t kf_version(void) { return lib.version(); }

const char *kf_strerror(int err) { return lib.strerror(err < 0 ? -err : err); }

// api is the requested version: below 1.18 the efa provider does not use the card's RDMA on some
// machines.
static uint32_t api(void)
{
	uint32_t want = FI_VERSION(1, 18);
	return lib.version() < want ? lib.version() : want;
}

static void append_name(char *names, size_t size, const char *name)
{
	if (!name || !*name)
		return;
	size_t used = strlen(names), len = strlen(name);
	for (char *at = names; (at = strstr(at, name)); at += len)
		if ((at == names || at[-1] == ' ') && (at[len] == 0 || at[len] == ' '))
			return;
	if (used + len + 2 <= size)
		snprintf(names + used, size - used, "%s%s", used ? " " : "", name);
}

int kf_getinfo(const char *provider, const char *domain, const char *host, int manual, struct kf_info *out, char *names, size_t size)
{
	struct fi_info *hints = lib.dupinfo(NULL), *list = NULL;
	if (!hints)
		return -FI_ENOMEM;
	hints->caps = FI_RMA | FI_READ | FI_REMOTE_READ;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->domain_attr->data_progress = manual ? FI_PROGRESS_MANUAL : FI_PROGRESS_AUTO;
	hints->fabric_attr->prov_name = strdup(provider);
	if (domain)
		hints->domain_attr->name = strdup(domain);

	struct sigaction kept[SIGNALS];
	keep_signals(kept);
	int rc = lib.getinfo(api(), host, NULL, host ? FI_SOURCE : 0, hints, &list);
	restore_signals(kept);
	lib.freeinfo(hints);
	if (rc)
		return rc;
	struct fi_info *first = NULL;
	names[0] = 0;
	for (struct fi_info *i = list; i; i = i->next) {
		append_name(names, size, i->domain_attr->name);
		const char *name = i->domain_attr->name;
		if (!first && (!domain || (name && !strcmp(domain, name)))) // some ignore the hint
			first = i;
	}
	if (!first) {
		lib.freeinfo(list);
		return -FI_ENODATA;
	}
	memset(out, 0, sizeof *out);
	out->info = lib.dupinfo(first);
	lib.freeinfo(list);
	if (!out->info)
		return -FI_ENOMEM;
	first = out->info;
	out->provider = first->fabric_attr->prov_name;
	out->domain = first->domain_attr->name;
	out->max_message = first->ep_attr->max_msg_size;
	out->key_size = first->domain_attr->mr_key_size;
	out->format = first->addr_format;
	out->virtual_address = !!(first->domain_attr->mr_mode & FI_MR_VIRT_ADDR);
	out->local = !!(first->domain_attr->mr_mode & FI_MR_LOCAL);
	out->read_order = !!(first->tx_attr->msg_order & FI_ORDER_RAR);
	return 0;
}

void kf_freeinfo(struct fi_info *info) { lib.freeinfo(info); }

static void lock(struct kf_rail *r)
{
	if (r && r->serial)
		pthread_mutex_lock(&r->lock);
}

static void unlock(struct kf_rail *r)
{
	if (r && r->serial)
		pthread_mutex_unlock(&r->lock);
}

int kf_rail_open(struct fi_info *info, int serial, struct kf_rail *r, const char **what)
{
	struct sigaction kept[SIGNALS];
	memset(r, 0, sizeof *r);
	r->info = info;
	r->serial = serial;
	pthread_mutex_init(&r->lock, NULL);
	keep_signals(kept);
	*what = "fi_fabric";
	int rc = lib.fabric(info->fabric_attr, &r->fabric, NULL);
	if (!rc) {
		*what = "fi_domain";
		rc = fi_domain(r->fabric, info, &r->domain, NULL);
	}
	restore_signals(kept);
	if (rc)
		kf_rail_close(r);
	return rc;
}

int kf_rail_close(struct kf_rail *r)
{
	int rc = 0;
	if (r->domain)
		rc = fi_close(&r->domain->fid);
	if (r->fabric && !rc)
		rc = fi_close(&r->fabric->fid);
	r->domain = NULL;
	r->fabric = NULL;
	return rc;
}

// op identifies an operation for the provider, which may write into it until the operation is over.
struct op {
	struct fi_context2 context;
};

struct kf_ep {
	struct kf_rail *serves; // peers read from it; null: it reads
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	int own; // the domain is only for this endpoint
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_mr *words_mr;
	fi_addr_t peer;
	int ready; // descriptor that the provider makes readable; -1: there is none
	int wake;  // eventfd
	uint64_t *words;
	struct op ops[KF_DEPTH];
};

// Structures that the library fills or reads grew between its versions; these are larger.
union cq_attr {
	struct fi_cq_attr attr;
	char room[256];
};

union cq_error {
	struct fi_cq_err_entry entry;
	char room[256];
};

static int open_cq(struct kf_ep *e, int flags)
{
	union cq_attr a;
	memset(&a, 0, sizeof a);
	a.attr.size = 4 * KF_DEPTH;
	a.attr.format = FI_CQ_FORMAT_CONTEXT;
	a.attr.wait_obj = FI_WAIT_FD;
	e->ready = -1;
	if (!(flags & KF_POLL) && !fi_cq_open(e->domain, &a.attr, &e->cq, NULL)) {
		int fd = -1;
		if (!fi_control(&e->cq->fid, FI_GETWAIT, &fd) && fd >= 0) {
			e->ready = fd;
			return 0;
		}
		fi_close(&e->cq->fid);
	}
	e->cq = NULL;
	a.attr.wait_obj = FI_WAIT_NONE;
	return fi_cq_open(e->domain, &a.attr, &e->cq, NULL);
}

// open_peer sets the peer that e reads from. The address is copied, because its own first bytes say
// how long the provider takes it to be.
static int open_peer(struct kf_ep *e, const void *addr, size_t size)
{
	char room[512] = {0};
	if (size > sizeof room / 2)
		return -FI_EINVAL;
	memcpy(room, addr, size);
	int rc = fi_av_insert(e->av, room, 1, &e->peer, 0, NULL);
	return rc == 1 ? 0 : rc < 0 ? rc : -FI_EADDRNOTAVAIL;
}

static int open_parts(struct kf_ep *e, struct kf_rail *r, const void *addr, size_t size, int flags, const char **what)
{
	struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = 1};
	uint64_t key;
	int rc;
	*what = "fi_domain";
	if (flags & KF_OWN) {
		if ((rc = fi_domain(r->fabric, r->info, &e->domain, NULL)))
			return rc;
		e->own = 1;
	} else {
		e->domain = r->domain;
	}
	*what = "fi_endpoint";
	if ((rc = fi_endpoint(e->domain, r->info, &e->ep, NULL)))
		return rc;
	*what = "fi_cq_open";
	if ((rc = open_cq(e, flags)))
		return rc;
	*what = "fi_av_open";
	if ((rc = fi_av_open(e->domain, &av, &e->av, NULL)))
		return rc;
	*what = "fi_ep_bind";
	if ((rc = fi_ep_bind(e->ep, &e->av->fid, 0)) || (rc = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV)))
		return rc;
	*what = "fi_enable";
	if ((rc = fi_enable(e->ep)))
		return rc;
	*what = "fi_av_insert";
	if (addr && (rc = open_peer(e, addr, size)))
		return rc;
	*what = "fi_mr_reg";
	if ((flags & KF_LOCAL) && (rc = kf_mr_open(r, e->words, KF_DEPTH * sizeof *e->words, 0, 0, &e->words_mr, &key)))
		return rc;
	return 0;
}

int kf_ep_open(struct kf_rail *r, const void *addr, size_t size, int flags, struct kf_ep **out, const char **what)
{
	*what = "memory";
	struct kf_ep *e = calloc(1, sizeof *e);
	if (!e)
		return -FI_ENOMEM;
	e->fabric = r->fabric;
	e->serves = addr ? NULL : r;
	e->ready = -1;
	e->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->wake < 0 || posix_memalign((void **)&e->words, 4096, 4096)) {
		int rc = e->wake < 0 ? -errno : -FI_ENOMEM;
		kf_ep_close(e);
		return rc;
	}
	memset(e->words, 0, 4096);
	struct sigaction kept[SIGNALS];
	keep_signals(kept);
	int rc = open_parts(e, r, addr, size, flags, what);
	restore_signals(kept);
	if (rc)
		kf_ep_close(e);
	else
		*out = e;
	return rc;
}

// kf_ep_close frees nothing that the endpoint may still write to if the endpoint does not close.
int kf_ep_close(struct kf_ep *e)
{
	int rc = 0;
	if (e->ep && (rc = fi_close(&e->ep->fid)))
		return rc;
	if (e->words_mr && (rc = fi_close(&e->words_mr->fid)))
		return rc;
	if (e->cq)
		rc = fi_close(&e->cq->fid);
	if (e->av) {
		int av = fi_close(&e->av->fid);
		rc = rc ? rc : av;
	}
	if (e->own) {
		int own = fi_close(&e->domain->fid);
		rc = rc ? rc : own;
	}
	if (e->wake >= 0)
		close(e->wake);
	free(e->words);
	free(e);
	return rc;
}

int kf_ep_name(struct kf_ep *e, void *addr, size_t *size) { return fi_getname(&e->ep->fid, addr, size); }

int kf_ep_wakes(struct kf_ep *e) { return e->ready >= 0; }

int kf_ep_read(struct kf_ep *e, int slot, void *buf, size_t len, struct fid_mr *mr, uint64_t at, uint64_t key)
{
	return fi_read(e->ep, buf, len, mr ? fi_mr_desc(mr) : NULL, e->peer, at, key, &e->ops[slot]);
}

int kf_ep_word(struct kf_ep *e, int slot, uint64_t at, uint64_t key)
{
	e->words[slot] = 0;
	return kf_ep_read(e, slot, &e->words[slot], sizeof *e->words, e->words_mr, at, key);
}

uint64_t kf_ep_word_of(struct kf_ep *e, int slot) { return e->words[slot]; }

static int slot_of(struct kf_ep *e, void *context)
{
	struct op *op = context;
	return op >= e->ops && op < e->ops + KF_DEPTH ? (int)(op - e->ops) : -1;
}

static int read_error(struct kf_ep *e, struct kf_done *out)
{
	union cq_error u;
	memset(&u, 0, sizeof u);
	ssize_t n = fi_cq_readerr(e->cq, &u.entry, 0);
	if (n < 0)
		return n == -FI_EAGAIN ? 0 : (int)n;
	out->slot = slot_of(e, u.entry.op_context);
	out->err = u.entry.err ? u.entry.err : FI_EIO;
	out->detail = u.entry.prov_errno;
	return 1;
}

// read_cq takes completed operations. If wait is set it waits for one up to a millisecond.
static int read_cq(struct kf_ep *e, struct kf_done *out, int wait)
{
	struct fi_cq_entry entries[KF_BATCH];
	lock(e->serves);
	ssize_t n = wait ? fi_cq_sread(e->cq, entries, KF_BATCH, NULL, 1) : fi_cq_read(e->cq, entries, KF_BATCH);
	if (n == -FI_EAVAIL) {
		n = read_error(e, out);
		unlock(e->serves);
		return (int)n;
	}
	unlock(e->serves);
	if (n == -FI_EAGAIN || n == -FI_EINTR)
		return 0;
	for (ssize_t i = 0; i < n; i++) {
		out[i].slot = slot_of(e, entries[i].op_context);
		out[i].err = 0;
		out[i].detail = 0;
	}
	return (int)n;
}

// drain forgets that kf_ep_wake was called.
static void drain(struct kf_ep *e)
{
	uint64_t n;
	ssize_t got = read(e->wake, &n, sizeof n);
	(void)got; // no data is fine
}

// sleep_ready lets the provider wake this thread, and reports whether it did.
static int sleep_ready(struct kf_ep *e, int timeout_ms)
{
	struct fid *fids[] = {&e->cq->fid};
	lock(e->serves);
	int rc = e->fabric->ops->trywait(e->fabric, fids, 1);
	unlock(e->serves);
	if (rc)
		return 0; // something is there already
	struct pollfd fds[] = {{.fd = e->wake, .events = POLLIN}, {.fd = e->ready, .events = POLLIN}};
	poll(fds, 2, timeout_ms);
	if (fds[0].revents)
		drain(e);
	return fds[1].revents != 0;
}

// If nothing can wake this thread, it checks again after 10 us, and after twice as long each time,
// up to 1 ms.
static int sleep_polling(struct kf_ep *e, struct kf_done *out, int timeout_ms)
{
	long left = timeout_ms * 1000000L;
	for (long pause = 10000; left > 0; left -= pause, pause = pause < 500000 ? 2 * pause : 1000000) {
		struct pollfd fd = {.fd = e->wake, .events = POLLIN};
		struct timespec ts = {.tv_nsec = pause < left ? pause : left};
		if (ppoll(&fd, 1, &ts, NULL) > 0) {
			drain(e);
			return 0;
		}
		int n = read_cq(e, out, 0);
		if (n)
			return n;
	}
	return 0;
}

// A provider may leave its descriptor readable for operations taken long ago. Waiting with a
// function of its own corrects that.
int kf_ep_poll(struct kf_ep *e, struct kf_done *out, int timeout_ms)
{
	int n = read_cq(e, out, 0);
	if (n || timeout_ms == 0)
		return n;
	if (e->ready < 0)
		return sleep_polling(e, out, timeout_ms);
	// The sender may need the processor: yielding and checking again costs less than a wake-up.
	if (!e->serves) {
		sched_yield();
		n = read_cq(e, out, 0);
		if (n)
			return n;
	}
	int woken = sleep_ready(e, timeout_ms);
	n = read_cq(e, out, 0);
	return n || !woken ? n : read_cq(e, out, 1);
}

void kf_ep_wake(struct kf_ep *e)
{
	uint64_t one = 1;
	ssize_t n = write(e->wake, &one, sizeof one);
	(void)n; // if that fails, it is readable already
}

void kf_ep_pause(struct kf_ep *e, int timeout_ms)
{
	struct pollfd fd = {.fd = e->wake, .events = POLLIN};
	poll(&fd, 1, timeout_ms);
	drain(e);
}

int kf_mr_open(struct kf_rail *r, const void *buf, size_t len, int remote, uint64_t want, struct fid_mr **mr, uint64_t *key)
{
	lock(r);
	int rc = fi_mr_reg(r->domain, buf, len, remote ? FI_REMOTE_READ : FI_READ, 0, want, 0, mr, NULL);
	unlock(r);
	if (rc)
		return rc;
	*key = fi_mr_key(*mr);
	if (remote && *key == FI_KEY_NOTAVAIL) {
		kf_mr_close(r, *mr);
		return -FI_EKEYREJECTED;
	}
	return 0;
}

int kf_mr_close(struct kf_rail *r, struct fid_mr *mr)
{
	lock(r);
	int rc = fi_close(&mr->fid);
	unlock(r);
	return rc;
}

package nic

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// markVisible sets Visible of those gpus that CUDA would show under CUDA_VISIBLE_DEVICES=list; set
// is false if the variable is not set. It returns a note if that is not certain.
//
// Entries are numbers or beginnings of UUIDs. The first entry that names no GPU, usually -1, ends
// the list. A MIG device counts as the GPU that contains it.
//
// Source: CUDA Programming Guide, CUDA Environment Variables,
// https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
func markVisible(gpus []GPU, list string, set bool, order string) (note string) {
	if !set {
		for i := range gpus {
			gpus[i].Visible = true
		}
		return ""
	}
	byBus := cudaOrder(gpus)
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		g := byUUID(gpus, entry)
		if n, err := strconv.Atoi(entry); err == nil {
			if n < 0 || n >= len(byBus) {
				break
			}
			g = byBus[n]
			if order != "PCI_BUS_ID" && models(gpus) > 1 {
				note = fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s is taken in the order of the PCI bus, but CUDA puts the fastest of several models first: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs", list)
			}
		}
		if g == nil {
			break
		}
		g.Visible = true
	}
	return note
}

// cudaOrder returns gpus in the order in which CUDA numbers GPUs of one model. With
// CUDA_DEVICE_ORDER=PCI_BUS_ID it is the order of all.
func cudaOrder(gpus []GPU) []*GPU {
	byBus := make([]*GPU, len(gpus))
	for i := range gpus {
		byBus[i] = &gpus[i]
	}
	slices.SortStableFunc(byBus, func(a, b *GPU) int {
		return cmp.Or(cmp.Compare(len(a.PCI), len(b.PCI)), cmp.Compare(a.PCI, b.PCI))
	})
	return byBus
}

// models returns how many kinds of GPUs there are.
func models(gpus []GPU) int {
	names := map[string]bool{}
	for i := range gpus {
		names[gpus[i].Name] = true
	}
	return len(names)
}

// byUUID returns the GPU that entry names, or nil if there is none or more than one. An entry is
// "GPU-" and a unique beginning of its UUID, or "MIG-" and that of a MIG device of it, or as in
// older drivers "MIG-GPU-uuid/instance/instance".
func byUUID(gpus []GPU, entry string) *GPU {
	if !hasPrefixFold(entry, "GPU-") && !hasPrefixFold(entry, "MIG-") {
		return nil
	}
	var found *GPU
	old := len(entry) >= 8 && strings.EqualFold(entry[:8], "MIG-GPU-")
	if old {
		entry, _, _ = strings.Cut(entry[4:], "/")
	}
	for i := range gpus {
		g := &gpus[i]
		match := hasPrefixFold(g.UUID, entry)
		for _, mig := range g.mig {
			match = match || !old && hasPrefixFold(mig, entry)
		}
		if match && found != nil {
			return nil
		}
		if match {
			found = g
		}
	}
	return found
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

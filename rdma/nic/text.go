package nic

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// String returns the name of the device, with the port unless it is the first: as lists have
// it.
func (d *Device) String() string {
	if d.Port == 1 {
		return d.Name
	}
	return d.Name + ":" + strconv.Itoa(d.Port)
}

// String returns the device, and the GPUs that it was chosen for: "mlx5_0 (GPU 0, PIX)".
func (r *Rail) String() string {
	if len(r.GPUs) == 0 {
		return r.Device.String()
	}
	gpus := make([]string, len(r.GPUs))
	for i, g := range r.GPUs {
		gpus[i] = strconv.Itoa(g)
	}
	text := r.Device.String() + " (GPU " + strings.Join(gpus, "+")
	if r.Path != "" {
		text += ", " + r.Path
	}
	return text + ")"
}

// String returns the plan in one line, without its notes: "affinity: mlx5_0 (GPU 0, PIX), mlx5_1
// (GPU 1, PIX)".
func (p *Plan) String() string {
	rails := make([]string, len(p.Rails))
	for i := range p.Rails {
		rails[i] = p.Rails[i].String()
	}
	text := string(p.Policy)
	if p.Striped {
		text += ", striped"
	}
	return text + ": " + strings.Join(rails, ", ")
}

// WriteTable writes the devices, the GPUs, and which active devices are nearest to each, for
// people.
func (inv *Inventory) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if len(inv.Devices) == 0 {
		fmt.Fprintln(tw, "no RDMA devices")
	} else {
		fmt.Fprintln(tw, "DEVICE\tSTATE\tLINK\tRATE\tINTERFACE\tADDRESS\tGID\tPCI\tNUMA\tDRIVER")
	}
	for i := range inv.Devices {
		d := &inv.Devices[i]
		address, gid := "", ""
		if len(d.Addrs) > 0 {
			address = d.Addrs[0].String()
		}
		if d.GIDIndex >= 0 {
			gid = strconv.Itoa(d.GIDIndex)
		}
		writeRow(tw, d.String(), d.State, d.LinkLayer, d.Rate, d.Netdev, address, gid, d.PCI, number(d.NUMA), d.Driver)
	}
	fmt.Fprintln(tw)
	if len(inv.GPUs) == 0 {
		fmt.Fprintf(tw, "no GPUs: %s\n", inv.whyNoGPU())
		return tw.Flush()
	}
	fmt.Fprintln(tw, "GPU\tNAME\tPCI\tNUMA\tVISIBLE\tNEAREST")
	var devices []*Device
	for i := range inv.Devices {
		if inv.Devices[i].usable() {
			devices = append(devices, &inv.Devices[i])
		}
	}
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		nearest, how := inv.nearest(g, devices)
		text := ""
		for _, d := range nearest {
			text += d.String() + " "
		}
		if len(nearest) > 0 {
			text += classNames[how.class]
		}
		writeRow(tw, strconv.Itoa(g.Index), g.Name, g.PCI, number(g.NUMA), strconv.FormatBool(g.Visible), text)
	}
	if inv.GPUError != "" {
		fmt.Fprintf(tw, "not all GPUs are known: %s\n", inv.GPUError)
	}
	return tw.Flush()
}

// writeRow writes the cells of a table, "-" for what is not known.
func writeRow(w io.Writer, cells ...string) {
	for i := range cells {
		cells[i] = cmp.Or(strings.TrimSpace(cells[i]), "-")
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// number returns n, which is unknown below 0.
func number(n int) string {
	if n < 0 {
		return ""
	}
	return strconv.Itoa(n)
}

package nic

import (
	"strconv"
	"strings"
)

// String returns the name of the device, and the port unless it is the first, as in lists.
func (d *Device) String() string {
	if d.Port == 1 {
		return d.Name
	}
	return d.Name + ":" + strconv.Itoa(d.Port)
}

// String returns the device and the GPUs for which it was chosen: "mlx5_0 (GPU 0, PIX)".
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

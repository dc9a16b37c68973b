// Package port is the way of the SSD tier to one device: operations and their watchdog, staging
// buffers, and what an error says about the device. It knows neither blocks nor slots.
package port

// Command s3 is the S3 server of the tests: the gateway of Versity over a directory, as a
// library. Our own main leaves out what its command adds: the clients of Azure, a proxy and a
// command line. It is a module of its own, so that kvfs does not depend on what only it needs.
// Package tests/s3test builds and starts it.
//
// The key and the secret are in the environment, as AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY. The server writes a line to its standard output when it listens.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
)

func main() {
	listen := flag.String("listen", "", "the `address` to listen on")
	dir := flag.String("dir", "", "the `directory` of the buckets")
	sidecar := flag.String("sidecar", "", "the `directory` of the metadata, if that of the buckets has no extended attributes")
	cert := flag.String("cert", "", "the `file` of the certificate; empty for plain HTTP")
	key := flag.String("key", "", "the `file` of the key of the certificate")
	readOnly := flag.Bool("read-only", false, "refuse every change")
	flag.Parse()
	if err := run(*listen, *dir, *sidecar, *cert, *key, *readOnly); err != nil {
		log.Fatal(err)
	}
}

func run(listen, dir, sidecar, cert, key string, readOnly bool) error {
	var store meta.MetadataStorer = meta.XattrMeta{}
	if sidecar != "" {
		side, err := meta.NewSideCar(sidecar)
		if err != nil {
			return err
		}
		store = side
	}
	back, err := posix.New(dir, store, posix.PosixOpts{SideCarDir: sidecar})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(context.Background(), back, &embedgw.Config{
		RootUserAccess: os.Getenv("AWS_ACCESS_KEY_ID"),
		RootUserSecret: os.Getenv("AWS_SECRET_ACCESS_KEY"),
		Region:         "us-east-1",
		Ports:          []string{listen},
		MaxConnections: 1024,
		MaxRequests:    1024,

		MultipartMaxParts: 10000,
		CertFile:          cert,
		KeyFile:           key,
		Quiet:             true,
		Readonly:          readOnly,
		KeepAlive:         true,
		S3Options:         []s3api.Option{s3api.WithOnListen(func() { fmt.Println("ready") })},
	})
}

// Command controller is cert-manager's controller, put together from its public packages: its own main is in
// a nested module that the module proxy does not serve. Flags and defaults are cert-manager's, as far as the
// end-to-end tests need them; there is no leader election and no webhook.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/acmechallenges"
	_ "github.com/cert-manager/cert-manager/pkg/controller/acmeorders"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/gateways"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/listenerset"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/acme"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/acme"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	utilfeature "github.com/cert-manager/cert-manager/pkg/util/feature"
)

// Workers of each controller.
const workers = 5

func main() {
	var options controller.ContextOptions
	flag.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig; none: that of the pod")
	flag.StringVar(&options.ClusterResourceNamespace, "cluster-resource-namespace", "kube-system", "where ClusterIssuers have their Secrets")
	flag.StringVar(&options.HTTP01SolverImage, "acme-http01-solver-image", "", "image that answers HTTP-01 challenges")
	nameservers := flag.String("acme-http01-solver-nameservers", "", "host:port, comma-separated, for looking whether a challenge is there")
	gates := flag.String("feature-gates", "", "ListenerSets=true, for instance")
	flag.BoolVar(&options.EnableGatewayAPI, "enable-gateway-api", false, "certificates for Gateways, and HTTP-01 by HTTPRoutes")
	flag.BoolVar(&options.EnableGatewayAPIListenerSet, "enable-gateway-api-listenerset", false, "certificates for ListenerSets; needs the gate too")
	without := flag.String("without", "", "controllers that do not run, comma-separated (gateway-shim, for instance)")
	backoff := flag.Duration("certificate-request-minimum-backoff-duration", time.Hour, "first wait after a request has failed")
	flag.Parse()
	if *nameservers != "" {
		options.HTTP01SolverNameservers = strings.Split(*nameservers, ",")
	}
	if err := utilfeature.DefaultMutableFeatureGate.Set(*gates); err != nil {
		log.Fatal(err)
	}
	options.KubernetesAPIQPS, options.KubernetesAPIBurst = 20, 50
	options.ClusterIssuerAmbientCredentials = true
	options.HTTP01SolverResourceRequestCPU = resource.MustParse("10m")
	options.HTTP01SolverResourceRequestMemory = resource.MustParse("64Mi")
	options.HTTP01SolverResourceLimitsCPU = resource.MustParse("100m")
	options.HTTP01SolverResourceLimitsMemory = resource.MustParse("64Mi")
	options.ACMEHTTP01SolverRunAsNonRoot = true
	options.DNS01CheckRetryPeriod = 10 * time.Second
	options.DefaultIssuerKind, options.DefaultIssuerGroup = "Issuer", "cert-manager.io"
	options.DefaultAutoCertificateAnnotations = []string{"kubernetes.io/tls-acme"}
	options.CopiedAnnotationPrefixes = []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"}
	options.CertificateRequestMinimumBackoffDuration = *backoff
	options.CertificateRequestMaximumBackoffDuration = 32 * time.Hour
	options.MaxConcurrentChallenges = 60

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, options, *without); err != nil {
		log.Fatal(err)
	}
}

// Runs the controllers until the context ends.
func run(ctx context.Context, options controller.ContextOptions, without string) error {
	logger := klog.NewKlogr()
	ctx = logf.NewContext(logr.NewContext(ctx, logger), logger, "cert-manager")
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	gate := utilfeature.DefaultFeatureGate.Enabled("ListenerSets")
	// As cert-manager's own main: what is not asked for does not run.
	off := map[string]bool{
		"gateway-shim": !options.EnableGatewayAPI,
		"listenerset":  !(options.EnableGatewayAPI && options.EnableGatewayAPIListenerSet && gate),
	}
	for name := range strings.SplitSeq(without, ",") {
		off[name] = true
	}
	var running sync.WaitGroup
	for name, construct := range controller.Known() {
		if off[name] {
			continue
		}
		control, err := construct(factory)
		if err != nil {
			return err
		}
		running.Go(func() {
			if err := control.Run(workers, ctx); err != nil && ctx.Err() == nil {
				log.Fatalf("%s: %v", name, err)
			}
		})
	}
	// The informers that the constructors asked for.
	base, err := factory.Build()
	if err != nil {
		return err
	}
	base.SharedInformerFactory.Start(ctx.Done())
	base.KubeSharedInformerFactory.Start(ctx.Done())
	base.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	if options.EnableGatewayAPI {
		base.GWShared.Start(ctx.Done())
	}
	running.Wait()
	return nil
}

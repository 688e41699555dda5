// Sends an image to a Skylane worker over the Open Inference Protocol (REST with binary tensors) and writes the mask of
// the response. Needs only the framework; compiles with Mono's mcs and as a .NET Framework program.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Text;
using System.Web.Script.Serialization;

namespace Skylane
{
    /// <summary>The worker returned no mask; the message has the reason.</summary>
    public sealed class RefusedException : Exception
    {
        public RefusedException(string reason, Exception cause = null) : base(reason, cause) { }
    }

    /// <summary>The class id of every pixel, row by row, and the duration of each stage in the worker.</summary>
    public sealed class Mask
    {
        public int Height, Width;
        public byte[] ClassIds;
        public string Model;
        public string ServerTiming;

        public void WritePgm(string path)
        {
            using (var file = File.Create(path))
            {
                var head = Encoding.ASCII.GetBytes($"P5\n{Width} {Height}\n255\n");
                file.Write(head, 0, head.Length);
                file.Write(ClassIds, 0, ClassIds.Length);
            }
        }
    }

    /// <summary>The REST endpoint of a worker.</summary>
    public sealed class Worker
    {
        private const string JsonLength = "Inference-Header-Content-Length";
        private readonly string address, token;
        private readonly int timeoutMs;

        /// <param name="address">http://HOST:PORT, or https.</param>
        /// <param name="token">The bearer token; null if the worker requires none.</param>
        public Worker(string address, string token = null, int timeoutMs = 30000)
        {
            this.address = address.TrimEnd('/');
            this.token = token;
            this.timeoutMs = timeoutMs;
        }

        /// <summary>Returns the mask of a JPEG or PNG of any size; the mask has the model's size.</summary>
        /// <exception cref="RefusedException">The worker responds with an error, or not at all.</exception>
        public Mask Segment(string model, byte[] image)
        {
            var json = Json(new Dictionary<string, object>
            {
                ["inputs"] = new[] { Tensor("image_bytes", "BYTES", image.Length + 4) },
                ["outputs"] = new[] { new { name = "mask", parameters = new { binary_data = true } } },
            });
            var request = (HttpWebRequest)WebRequest.Create($"{address}/v2/models/{Uri.EscapeDataString(model)}/infer");
            request.Method = "POST";
            request.ContentType = "application/octet-stream";
            request.ContentLength = json.Length + 4 + image.Length;
            request.Timeout = request.ReadWriteTimeout = timeoutMs;
            request.ServicePoint.Expect100Continue = false; // Otherwise the image is sent only after a "100 Continue" response.
            request.Headers[JsonLength] = json.Length.ToString(CultureInfo.InvariantCulture);
            request.Headers["Skylane-Timeout-Ms"] = timeoutMs.ToString(CultureInfo.InvariantCulture);
            if (token != null) request.Headers["Authorization"] = "Bearer " + token;
            try
            {
                using (var body = request.GetRequestStream())
                {
                    body.Write(json, 0, json.Length);
                    body.Write(LittleEndian(image.Length), 0, 4); // Each string is preceded by its length.
                    body.Write(image, 0, image.Length);
                }
                using (var response = (HttpWebResponse)request.GetResponse()) return Read(response);
            }
            catch (WebException error)
            {
                throw new RefusedException(Reason(error), error);
            }
        }

        private static Mask Read(HttpWebResponse response)
        {
            var content = Bytes(response);
            int head;
            if (!int.TryParse(response.Headers[JsonLength], out head) || head > content.Length)
                throw new RefusedException("the response has no binary data: is this the address of a worker?");
            var answer = Parse(Encoding.UTF8.GetString(content, 0, head));
            var output = (Dictionary<string, object>)((System.Collections.ArrayList)answer["outputs"])[0];
            var shape = ((System.Collections.ArrayList)output["shape"]).Cast<int>().ToArray();
            if ((string)output["name"] != "mask" || shape.Length != 3 || shape.Aggregate(1L, (a, b) => a * b) != content.Length - head)
                throw new RefusedException($"the response is not the mask of one image: {output["name"]} of {string.Join("×", shape)}");
            return new Mask
            {
                Height = shape[1],
                Width = shape[2],
                ClassIds = content.Skip(head).ToArray(),
                Model = $"{answer["model_name"]} {answer["model_version"]}",
                ServerTiming = response.Headers["Server-Timing"],
            };
        }

        /// <summary>The worker's error message, {"error": …}; if there is none, the error of the call.</summary>
        private static string Reason(WebException error)
        {
            var response = error.Response as HttpWebResponse;
            if (response == null) return error.Message;
            var content = Encoding.UTF8.GetString(Bytes(response));
            object reason;
            try
            {
                Parse(content).TryGetValue("error", out reason);
            }
            catch (ArgumentException)
            {
                reason = null;
            }
            return $"{(int)response.StatusCode} {response.StatusCode}: {reason ?? content}";
        }

        private static object Tensor(string name, string datatype, int bytes)
        {
            return new { name, datatype, shape = new[] { 1 }, parameters = new { binary_data_size = bytes } };
        }

        private static byte[] Json(object document)
        {
            return Encoding.UTF8.GetBytes(new JavaScriptSerializer().Serialize(document));
        }

        private static Dictionary<string, object> Parse(string json)
        {
            return new JavaScriptSerializer { MaxJsonLength = int.MaxValue }.Deserialize<Dictionary<string, object>>(json);
        }

        private static byte[] LittleEndian(int number)
        {
            return Enumerable.Range(0, 4).Select(place => (byte)(number >> (8 * place))).ToArray();
        }

        private static byte[] Bytes(HttpWebResponse response)
        {
            using (var content = new MemoryStream())
            {
                response.GetResponseStream().CopyTo(content);
                return content.ToArray();
            }
        }
    }

    public static class Program
    {
        public static int Main(string[] arguments)
        {
            if (arguments.Length != 4)
            {
                Console.Error.WriteLine("usage: skylane-send http://HOST:PORT MODEL IMAGE MASK.pgm");
                return 2;
            }
            try
            {
                var worker = new Worker(arguments[0], Environment.GetEnvironmentVariable("SKYLANE_WORKER_TOKEN"));
                var mask = worker.Segment(arguments[1], File.ReadAllBytes(arguments[2]));
                mask.WritePgm(arguments[3]);
                Console.WriteLine($"mask of {mask.Height} x {mask.Width} by {mask.Model}");
                foreach (var stage in (mask.ServerTiming ?? "").Split(new[] { ", " }, StringSplitOptions.RemoveEmptyEntries))
                    Console.WriteLine(stage.Replace(";dur=", " ") + " ms");
                return 0;
            }
            catch (Exception error) when (error is RefusedException || error is IOException || error is UriFormatException)
            {
                Console.Error.WriteLine("skylane-send: " + error.Message);
                return 1;
            }
        }
    }
}

// Sends a picture to a Skylane worker by the Open Inference Protocol's REST, with its binary extension, and writes the
// mask that comes back. Needs no library beside the framework; compiles with Mono's mcs and as a .NET Framework program.

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
    /// <summary>No mask came; the message says why.</summary>
    public sealed class RefusedException : Exception
    {
        public RefusedException(string reason, Exception cause = null) : base(reason, cause) { }
    }

    /// <summary>The class id of every pixel, row by row, and where the time went.</summary>
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

    /// <summary>A worker's REST door.</summary>
    public sealed class Worker
    {
        private const string JsonLength = "Inference-Header-Content-Length";
        private readonly string address, token;
        private readonly int timeoutMs;

        /// <param name="address">http://HOST:PORT, or https.</param>
        /// <param name="token">Sent as a bearer's; null where the worker asks for none.</param>
        public Worker(string address, string token = null, int timeoutMs = 30000)
        {
            this.address = address.TrimEnd('/');
            this.token = token;
            this.timeoutMs = timeoutMs;
        }

        /// <summary>The mask of a JPEG or PNG of any size: of the model's size.</summary>
        /// <exception cref="RefusedException">The worker answers with an error, or not at all.</exception>
        public Mask Segment(string model, byte[] picture)
        {
            var json = Json(new Dictionary<string, object>
            {
                ["inputs"] = new[] { Tensor("image_bytes", "BYTES", picture.Length + 4) },
                ["outputs"] = new[] { new { name = "mask", parameters = new { binary_data = true } } },
            });
            var request = (HttpWebRequest)WebRequest.Create($"{address}/v2/models/{Uri.EscapeDataString(model)}/infer");
            request.Method = "POST";
            request.ContentType = "application/octet-stream";
            request.ContentLength = json.Length + 4 + picture.Length;
            request.Timeout = request.ReadWriteTimeout = timeoutMs;
            request.ServicePoint.Expect100Continue = false; // It would wait for a word before it sends the picture.
            request.Headers[JsonLength] = json.Length.ToString(CultureInfo.InvariantCulture);
            request.Headers["Skylane-Timeout-Ms"] = timeoutMs.ToString(CultureInfo.InvariantCulture);
            if (token != null) request.Headers["Authorization"] = "Bearer " + token;
            try
            {
                using (var body = request.GetRequestStream())
                {
                    body.Write(json, 0, json.Length);
                    body.Write(LittleEndian(picture.Length), 0, 4); // Each string has its length before it.
                    body.Write(picture, 0, picture.Length);
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
                throw new RefusedException("the answer holds no binary data: is this a worker's address?");
            var answer = Parsed(Encoding.UTF8.GetString(content, 0, head));
            var output = (Dictionary<string, object>)((System.Collections.ArrayList)answer["outputs"])[0];
            var shape = ((System.Collections.ArrayList)output["shape"]).Cast<int>().ToArray();
            if ((string)output["name"] != "mask" || shape.Length != 3 || shape.Aggregate(1L, (a, b) => a * b) != content.Length - head)
                throw new RefusedException($"the answer is no mask of one picture: {output["name"]} of {string.Join("×", shape)}");
            return new Mask
            {
                Height = shape[1],
                Width = shape[2],
                ClassIds = content.Skip(head).ToArray(),
                Model = $"{answer["model_name"]} {answer["model_version"]}",
                ServerTiming = response.Headers["Server-Timing"],
            };
        }

        /// <summary>What the worker says of an error, {"error": …}; else what became of the call.</summary>
        private static string Reason(WebException error)
        {
            var response = error.Response as HttpWebResponse;
            if (response == null) return error.Message;
            var content = Encoding.UTF8.GetString(Bytes(response));
            object reason;
            try
            {
                Parsed(content).TryGetValue("error", out reason);
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

        private static Dictionary<string, object> Parsed(string json)
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
                Console.Error.WriteLine("usage: skylane-send http://HOST:PORT MODEL PICTURE MASK.pgm");
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
